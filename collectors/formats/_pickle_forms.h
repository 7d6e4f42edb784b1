/* Entries that repeat an earlier one. Part of _pickle_columns.c.
 *
 * A training loop makes the same calls again, so most entries have the bytes of an earlier one but for their
 * numbers and the memo numbers they assign. Where an entry is read step by step, what may differ is recorded
 * as its form; where the bytes fit a known form, its row is copied with the new numbers, and the memo gets the
 * values it got then.
 *
 * Why that is the same: all else is equal byte for byte; a memo number that is named in it was assigned before
 * the recorded entry ended and names that value still (`off` once one was reassigned); and the numbers that
 * are assigned were never used.
 */
#ifndef PICKLE_FORMS_H
#define PICKLE_FORMS_H

#include "_pickle_rows.h"

#define NUMBER_MAX 10u  /* bytes of an opcode and its number; also what same_bytes may look beyond */

static void note_slot(Reader *r, uint8_t field)
{
    Forms *f = &r->forms;
    size_t start = f->open.start, need = f->slot_end + f->open.slot_count + 1;
    f->recording = f->open.slot_count < FORM_SLOTS_MAX
        && grow((void **)&f->slots, &f->slot_room, need, sizeof(Slot), FORM_PARTS_MAX);
    if (!f->recording) return;
    f->slots[need - 1] = (Slot){(uint32_t)(r->opcode_at - start), (uint32_t)(r->at - start), field};
    f->open.slot_count++;
}

/* The memo number of the value on top was assigned. A form has one range of them. */
static void note_put(Reader *r, size_t index)
{
    Forms *f = &r->forms;
    if (!f->open.put_count) f->first_put = index;
    if (index != f->first_put + f->open.put_count) {
        f->recording = 0;
        return;
    }
    f->open.put_count++;
    note_slot(r, NO_FIELD);
}

/* A number was pushed: a slot where it is the value of a column, directly in the entry. */
static void note_number(Reader *r)
{
    Forms *f = &r->forms;
    size_t at = r->depth - 1;
    if (floor_of(r) != f->entry_at + 1 || (at - f->entry_at) % 2) return;
    const Node *key = text_node(r, r->stack[at - 1]);
    if (!key || key->field < RECORD_ID || key->field > WIDE) return;
    f->held_at = at;
    note_slot(r, key->field);
}

/* Begins with the entry whose opcode was just read. */
static void record_form(Reader *r)
{
    Forms *f = &r->forms;
    f->open = (Form){.start = r->opcode_at, .slots = f->slot_end, .puts = f->put_end};
    f->open.row = (uint32_t)r->rows;
    f->entry_at = r->depth;
    f->held_at = 0;
    f->recording = !f->off && f->count < FORMS_MAX;
}

/* The last entry had this form: the next one is guessed by what came after it before. */
static void follow(Forms *f, uint32_t form)
{
    if (f->last) f->known[f->last - 1].next = form;
    f->last = form;
}

/* Columns that the slots fill, as bits; 0 where a column's key stands twice: which one counts is not kept. */
static uint32_t filled(const Reader *r, const Value *pairs, size_t count)
{
    const Forms *f = &r->forms;
    uint32_t fields = 0, seen = 0;
    for (size_t i = 0; i < count; i += 2) {
        uint8_t field = r->nodes[pairs[i].bits].field;
        if (field < RECORD_ID || field > WIDE) continue;
        if (seen & 1u << field) return 0;
        seen |= 1u << field;
    }
    for (uint32_t i = 0; i < f->open.slot_count; i++) fields |= 1u << f->slots[f->open.slots + i].field;
    return fields;
}

/* Keeps the form of the entry that is complete; `pairs` as add_entry has them. Without a record id the row
 * holds its own place, so no other row is like it. */
static void keep_form(Reader *r, const Value *pairs, size_t count)
{
    Forms *f = &r->forms;
    size_t need = f->put_end + f->open.put_count;
    f->recording = 0;
    f->open.size = r->at - f->open.start;
    f->open.fields = filled(r, pairs, count);
    if (!(f->open.fields & 1u << RECORD_ID)
        || !grow((void **)&f->puts, &f->put_room, need, sizeof(Value), FORM_PARTS_MAX)
        || !grow((void **)&f->known, &f->room, f->count + 1, sizeof(Form), FORMS_MAX)) return;
    for (size_t i = 0; i < f->open.put_count; i++) {
        Value value = r->memo[f->first_put + i];
        if (value.tag < NODE) return;
        if (value.tag == OPEN) value.bits = 0;  /* the entry itself: no container has this serial */
        f->puts[f->put_end + i] = value;
    }
    f->put_end = need;
    f->slot_end += f->open.slot_count;
    f->known[f->count++] = f->open;
    f->recent[f->count % RECENT] = (uint32_t)f->count;
    follow(f, (uint32_t)f->count);
}

/* Whether `count` bytes are equal; seven more must lie behind them. */
static int same_bytes(const uint8_t *one, const uint8_t *other, size_t count)
{
    uint64_t a, b;
    for (; count >= 8; one += 8, other += 8, count -= 8) {
        memcpy(&a, one, 8);
        memcpy(&b, other, 8);
        if (a != b) return 0;
    }
    return !count || !((little(one, 8) ^ little(other, 8)) << (64 - 8 * count));
}

/* Reads a number of `field`, of any width. Returns the bytes it takes, 0 where there is none. */
static size_t slot_number(const uint8_t *given, uint8_t field, int64_t *out)
{
    size_t width = argument_size(*given);
    Value value = {INTEGER, 0, 0};
    switch (*given) {
    case 'K': value.bits = given[1]; break;
    case 'M': value.bits = little(given + 1, 2); break;
    case 'J': value.bits = (uint64_t)widened(little(given + 1, 4), 4); break;
    case 'G': value = floating(given + 1); break;
    case 0x8a:
        if (given[1] > 8) return 0;
        value.bits = (uint64_t)widened(little(given + 2, 8), given[1]);
        width += given[1];
        break;
    default: return 0;
    }
    return column_number(field, value, out) ? 1 + width : 0;
}

/* Reads the assignment of a memo number. Returns the bytes it takes, 0 where it is not the next one. */
static size_t slot_put(const Reader *r, const uint8_t *given, size_t puts, size_t *first)
{
    size_t width = argument_size(*given);
    size_t index = width ? (size_t)little(given + 1, width) : r->memo_count + puts;
    if (!puts) *first = index;
    return index == *first + puts ? 1 + width : 0;
}

/* Whether the entry whose first opcode was just read fits `form`; then the columns of the next row hold its
 * numbers. `end`: where it ends. `put`: the first memo number it assigns. */
static int fits(Reader *r, const Form *form, size_t *end, size_t *put)
{
    const uint8_t *held = r->data + form->start, *given = r->data + r->opcode_at, *stop = r->data + r->size;
    const Slot *slot = r->forms.slots + form->slots, *over = slot + form->slot_count;
    size_t from = 0, puts = 0;
    for (; slot < over; from = slot->end, slot++) {
        size_t same = slot->at - from, width;
        if ((size_t)(stop - given) < same + NUMBER_MAX || !same_bytes(held + from, given, same)) return 0;
        given += same;
        if (slot->field)
            width = slot_number(given, slot->field, &r->wide[slot->field - RECORD_ID][r->rows]);
        else
            width = *given == held[slot->at] ? slot_put(r, given, puts++, put) : 0;
        if (!width) return 0;
        given += width;
    }
    size_t same = form->size - from;
    if ((size_t)(stop - given) < same + NUMBER_MAX || !same_bytes(held + from, given, same)) return 0;
    *end = (size_t)(given - r->data) + same;
    return 1;
}

/* Adds the row of an entry that fits `form`. */
static int take(Reader *r, const Form *form, size_t end, size_t put)
{
    size_t at = r->rows, from = form->row, puts = form->put_count;
    if (puts) {
        if (put < r->memo_end || put > MEMO_MAX - puts || !reach(r, put, put + puts)) return 0;
        memcpy(r->memo + put, r->forms.puts + form->puts, puts * sizeof(Value));
        r->memo_count += puts;
    }
    for (int i = 0; i < WIDE; i++)
        if (!(form->fields & 1u << (RECORD_ID + i))) r->wide[i][at] = r->wide[i][from];
    for (int i = 0; i < TABLES; i++) r->narrow[i][at] = r->narrow[i][from];
    r->state[at] = r->state[from];
    r->retired[at] = r->retired[from];
    if (r->wide[0][at] < 0) r->wide[0][at] = (int64_t)at;
    r->rows++;
    r->at = end;
    return 1;
}

static int try_form(Reader *r, uint32_t form)
{
    size_t end, put = 0;
    if (!form || !fits(r, &r->forms.known[form - 1], &end, &put)) return 0;
    if (!take(r, &r->forms.known[form - 1], end, put)) return 0;
    follow(&r->forms, form);
    return 1;
}

/* Reads the entry whose first opcode was just read, if it repeats an earlier one. */
static int repeated(Reader *r)
{
    const Forms *f = &r->forms;
    if (!f->count || f->off || !add_rows_room(r)) return 0;
    uint32_t guess = f->last ? f->known[f->last - 1].next : 0;
    if (try_form(r, guess)) return 1;
    for (unsigned i = 0; i < RECENT; i++)
        if (f->recent[i] != guess && try_form(r, f->recent[i])) return 1;
    return 0;
}

#endif
