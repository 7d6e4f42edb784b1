/* A complete entry as a row of the columns. Part of _pickle_columns.c. */
#ifndef PICKLE_ROWS_H
#define PICKLE_ROWS_H

#include "_pickle_values.h"

static int add_rows_room(Reader *r)
{
    if (r->rows >= r->rows_max) return 0;
    if (r->rows < r->row_room) return 1;
    size_t wanted = r->row_room ? 2 * r->row_room : 2048, room;
    for (int i = 0; i < WIDE; i++) {
        room = 0;
        if (!grow((void **)&r->wide[i], &room, wanted, sizeof(int64_t), wanted)) return 0;
    }
    for (int i = 0; i < TABLES; i++) {
        room = 0;
        if (!grow((void **)&r->narrow[i], &room, wanted, sizeof(int32_t), wanted)) return 0;
    }
    room = 0;
    if (!grow((void **)&r->state, &room, wanted, 1, wanted)) return 0;
    room = 0;
    if (!grow((void **)&r->retired, &room, wanted, 1, wanted)) return 0;
    r->row_room = wanted;
    return 1;
}

/* A number from `least` up, -1 for none; 0 where the value is of another type. */
static int number(Value value, int64_t least, int64_t *out)
{
    if (value.tag > NONE && value.tag != INTEGER) return 0;
    int64_t given = value.tag == INTEGER ? (int64_t)value.bits : -1;
    *out = given >= least ? given : -1;
    return 1;
}

static int duration(Value value, int64_t *out)
{
    if (value.tag > NONE && value.tag != FLOATING) return 0;
    double ms = -1;
    if (value.tag == FLOATING) memcpy(&ms, &value.bits, sizeof ms);
    *out = ms >= 0 && ms < DURATION_MAX_MS ? (int64_t)(ms * 1e6) : -1;
    return 1;
}

/* The value of a 64-bit column's field. */
static int column_number(uint8_t field, Value value, int64_t *out)
{
    if (field == DURATION) return duration(value, out);
    return number(value, field >= CREATED && field <= COMPLETED, out);  /* JSON writes 0 for no time */
}

static int place(Reader *r, int table, Value value, int32_t *out)
{
    Node *node = &r->nodes[value.bits];
    if (node->place < 0) {
        Table *t = &r->tables[table];
        if (!grow((void **)&t->nodes, &t->room, t->count + 1, sizeof *t->nodes, NODES_MAX)) return 0;
        node->place = (int32_t)t->count;
        t->nodes[t->count++] = (uint32_t)value.bits;
    }
    *out = node->place;
    return 1;
}

static int place_stack(Reader *r, Value frames, int32_t *out)
{
    *out = -1;
    if (frames.tag <= NONE) return 1;
    if (frames.tag != NODE) return 0;
    const Node *node = &r->nodes[frames.bits];
    if (node->kind != LIST && node->kind != TUPLE) return 0;
    return node->count ? place(r, STACKS, frames, out) : 1;
}

static int state_of(const Reader *r, Value value, int8_t *out)
{
    *out = 0;
    if (value.tag <= NONE) return 1;
    const Node *node = text_node(r, value);
    if (!node) return 0;
    if (node->field >= IS_SCHEDULED) *out = (int8_t)(node->field - IS_SCHEDULED);
    return 1;
}

/* One entry as a row. `pairs`: keys and values, closed. */
static int add_entry(Reader *r, const Value *pairs, size_t count)
{
    Value field[FIELDS], row;
    memset(field, 0, sizeof field);
    for (size_t i = 0; i < count; i += 2) {
        const Node *key = text_node(r, pairs[i]);
        if (!key) return 0;
        if (key->field < FIELDS) field[key->field] = pairs[i + 1];
    }
    if (!add_rows_room(r)) return 0;
    size_t at = r->rows;
    if (field[SEQUENCE].tag == ABSENT) field[SEQUENCE] = field[OLD_SEQUENCE];
    for (uint8_t i = RECORD_ID; i <= TIMEOUT; i++)
        if (!column_number(i, field[i], &r->wide[i - RECORD_ID][at])) return 0;
    if (r->wide[0][at] < 0) r->wide[0][at] = (int64_t)at;
    if (!state_of(r, field[STATE], &r->state[at])) return 0;
    r->retired[at] = field[RETIRED].tag == TRUE_;
    if (!intern(r, ROW, &field[GROUP_ID], 2, &row)) return 0;
    if (!place(r, GROUPS, row, &r->narrow[GROUPS][at])) return 0;
    if (!intern(r, ROW, &field[NAME], 6, &row)) return 0;
    if (!place(r, SIGNATURES, row, &r->narrow[SIGNATURES][at])) return 0;
    if (!place_stack(r, field[FRAMES], &r->narrow[STACKS][at])) return 0;
    r->rows++;
    return 1;
}

#endif
