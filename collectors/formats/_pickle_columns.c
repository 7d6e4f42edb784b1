/* Reads the pickle of a flight-recorder dump into columns without building objects for its entries.
 *
 * In: the bytes of a file, which are foreign and may be hostile. Out: numbers as columns, and the few distinct
 * values of what repeats (groups, signatures, stacks). Values are interned by content while the opcodes are
 * walked; an entry becomes a row of the columns as soon as its dict is complete, so only what differs is kept.
 *
 * Whatever is unusual is declined by returning None: an opcode that is no plain data, a value of another type
 * than the recorder writes, a container that is changed after it was used, a bound that is reached, memory that
 * is not there. The plain reader then decides, so there is one place for messages and for tolerance.
 *
 * Bounds: every read is checked against the end; stack, marks, memo, nodes, children, depth and probes have
 * limits below. Opcodes: Python's Lib/pickletools.py, Modules/_pickle.c.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define STRING_MAX (1u << 20)   /* bytes; as plain_pickle */
#define MEMO_MAX (1u << 21)     /* as plain_pickle */
#define STACK_MAX (1u << 18)
#define MARKS_MAX 64u
#define DEPTH_MAX 32u
#define NODES_MAX (1u << 21)
#define CHILDREN_MAX (6u << 20)
#define PROBES_MAX 128u         /* names chosen to collide cost no more than this */
#define DURATION_MAX_MS 9.0e12  /* as recorder_rows */

/* ABSENT is no value of a pickle: a field that an entry lacks. From MARKED_OPEN on, values live on the stack
 * or in the memo only and are never interned. */
enum { ABSENT, NONE, TRUE_, FALSE_, INTEGER, FLOATING, NODE, OPEN_LIST, OPEN_DICT, ENTRIES, ENTRY_DONE, OPEN };

/* `memo`: 1 + the memo index of an open container. `bits`: the number, the node, or an open one's serial. */
typedef struct { uint32_t tag, memo; uint64_t bits; } Value;

enum { TEXT, LIST, TUPLE, DICT, ROW };

typedef struct {
    uint64_t hash;
    size_t start;    /* TEXT: offset in the data; else index of its first child */
    uint32_t count;  /* bytes or children; a DICT has two children per item */
    int32_t place;   /* index in a table of raw values, -1 where it is in none */
    uint8_t kind, field, depth;
    PyObject *made;
} Node;

/* Texts with a meaning: fields first, then the states in the order of their column values. */
enum {
    NO_FIELD, RECORD_ID, SEQUENCE, P2P_SEQUENCE, OP_ID, CREATED, STARTED, COMPLETED, DURATION, TIMEOUT,
    GROUP_ID, GROUP_NAME, NAME, IS_P2P, INPUTS, OUTPUTS, INPUT_TYPES, OUTPUT_TYPES, STATE, RETIRED, FRAMES,
    OLD_SEQUENCE, FIELDS, ENTRIES_KEY = FIELDS, IS_SCHEDULED, IS_STARTED, IS_COMPLETED, MEANINGS
};
static const char *const meaning[MEANINGS] = {
    "", "record_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns",
    "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms", "timeout_ms", "pg_id",
    "process_group", "profiling_name", "is_p2p", "input_sizes", "output_sizes", "input_dtypes",
    "output_dtypes", "state", "retired", "frames", "seq_id", "entries", "scheduled", "started", "completed",
};

/* Columns of 64 bits stand in the order of their fields, RECORD_ID to TIMEOUT. */
enum { WIDE = TIMEOUT };
static const char *const wide_name[WIDE] = {
    "record_id", "sequence", "p2p_sequence", "op_id", "created_ns", "started_ns", "completed_ns",
    "duration_ns", "timeout_ms",
};
enum { GROUPS, SIGNATURES, STACKS, TABLES };
static const char *const table_name[TABLES] = {"group", "signature", "stack"};

typedef struct { uint32_t *nodes; size_t count, room; } Table;

typedef struct {
    const uint8_t *data;
    size_t size, at;
    Value *stack; size_t depth, stack_room;
    size_t marks[MARKS_MAX]; size_t mark_count;
    Value *memo; size_t memo_room, memo_count;
    Node *nodes; size_t node_count, node_room;
    Value *children; size_t child_count, child_room;
    uint32_t *slots; size_t slot_count;
    uint64_t serial;
    int has_entries;     /* the list under "entries" was seen */
    size_t entries_at;   /* where it lies on the stack */
    size_t rows, row_room, rows_max;
    int64_t *wide[WIDE];
    int32_t *narrow[TABLES];
    int8_t *state, *retired;
    Table tables[TABLES];
} Reader;

/* Makes room for `need` items, at most `most`. 0: there is none. */
static int grow(void **items, size_t *room, size_t need, size_t item_size, size_t most)
{
    if (need <= *room) return 1;
    if (need > most) return 0;
    size_t wanted = *room ? *room : 64;
    while (wanted < need) wanted *= 2;
    if (wanted > most) wanted = most;
    void *moved = realloc(*items, wanted * item_size);
    if (!moved) return 0;
    *items = moved;
    *room = wanted;
    return 1;
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

static uint64_t text_hash(const uint8_t *text, size_t length)
{
    uint64_t hash = mixed(length, TEXT), word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, text, length);
    return mixed(hash, word);
}

/* The slot of the node that `same` accepts, or of the empty place for it; -1 after too many probes. */
static int64_t find_slot(const Reader *r, uint64_t hash, uint8_t kind, const void *content, size_t count)
{
    size_t mask = r->slot_count - 1, slot = (size_t)(hash >> 20) & mask;
    for (unsigned probe = 0; probe < PROBES_MAX; probe++, slot = (slot + 1) & mask) {
        if (!r->slots[slot]) return (int64_t)slot;
        const Node *node = &r->nodes[r->slots[slot] - 1];
        if (node->hash != hash || node->kind != kind || node->count != count) continue;
        if (!count) return (int64_t)slot;
        const void *held = kind == TEXT ? (const void *)(r->data + node->start)
                                        : (const void *)(r->children + node->start);
        if (!memcmp(held, content, kind == TEXT ? count : count * sizeof(Value))) return (int64_t)slot;
    }
    return -1;
}

static int widen_slots(Reader *r)
{
    size_t count = r->slot_count ? 2 * r->slot_count : 1024;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots) return 0;
    for (size_t i = 0; i < r->node_count; i++) {
        size_t slot = (size_t)(r->nodes[i].hash >> 20) & (count - 1);
        unsigned probe = 0;
        while (slots[slot] && probe++ < 8 * PROBES_MAX) slot = (slot + 1) & (count - 1);
        if (slots[slot]) {
            free(slots);
            return 0;
        }
        slots[slot] = (uint32_t)i + 1;
    }
    free(r->slots);
    r->slots = slots;
    r->slot_count = count;
    return 1;
}

/* A node that was not there yet. `slot` comes from find_slot. */
static Node *add_node(Reader *r, size_t slot, uint64_t hash, uint8_t kind, size_t count)
{
    if (!grow((void **)&r->nodes, &r->node_room, r->node_count + 1, sizeof(Node), NODES_MAX)) return NULL;
    Node *node = &r->nodes[r->node_count++];
    memset(node, 0, sizeof *node);
    node->hash = hash;
    node->kind = kind;
    node->count = (uint32_t)count;
    node->place = -1;
    r->slots[slot] = (uint32_t)r->node_count;
    return node;
}

static int is_text(const uint8_t *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] < 0x80) continue;
        PyObject *decoded = PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)length, "strict");
        if (!decoded) {
            PyErr_Clear();
            return 0;
        }
        Py_DECREF(decoded);
        return 1;
    }
    return 1;
}

static uint8_t field_of(const uint8_t *text, size_t length)
{
    for (uint8_t field = 1; field < MEANINGS; field++)
        if (strlen(meaning[field]) == length && !memcmp(meaning[field], text, length)) return field;
    return NO_FIELD;
}

static int intern_text(Reader *r, size_t start, size_t length, Value *out)
{
    const uint8_t *text = r->data + start;
    uint64_t hash = text_hash(text, length);
    if (2 * (r->node_count + 1) > r->slot_count && !widen_slots(r)) return 0;
    int64_t slot = find_slot(r, hash, TEXT, text, length);
    if (slot < 0) return 0;
    if (!r->slots[slot]) {
        if (!is_text(text, length)) return 0;
        Node *node = add_node(r, (size_t)slot, hash, TEXT, length);
        if (!node) return 0;
        node->start = start;
        node->field = field_of(text, length);
    }
    *out = (Value){NODE, 0, r->slots[slot] - 1};
    return 1;
}

/* A container of closed values; equal ones become one node. */
static int intern(Reader *r, uint8_t kind, const Value *items, size_t count, Value *out)
{
    uint64_t hash = mixed(count, kind);
    unsigned depth = 0;
    for (size_t i = 0; i < count; i++) {
        hash = mixed(hash, items[i].bits + ((uint64_t)items[i].tag << 56));
        if (items[i].tag == NODE && r->nodes[items[i].bits].depth > depth) depth = r->nodes[items[i].bits].depth;
    }
    if (depth + 1 > DEPTH_MAX) return 0;
    if (2 * (r->node_count + 1) > r->slot_count && !widen_slots(r)) return 0;
    int64_t slot = find_slot(r, hash, kind, items, count);
    if (slot < 0) return 0;
    if (!r->slots[slot]) {
        size_t need = r->child_count + count;
        if (!grow((void **)&r->children, &r->child_room, need, sizeof(Value), CHILDREN_MAX)) return 0;
        Node *node = add_node(r, (size_t)slot, hash, kind, count);
        if (!node) return 0;
        node->start = r->child_count;
        node->depth = (uint8_t)(depth + 1);
        if (count) memcpy(r->children + r->child_count, items, count * sizeof(Value));
        r->child_count = need;
    }
    *out = (Value){NODE, 0, r->slots[slot] - 1};
    return 1;
}

static int push(Reader *r, Value value)
{
    if (!grow((void **)&r->stack, &r->stack_room, r->depth + 1, sizeof(Value), STACK_MAX)) return 0;
    r->stack[r->depth++] = value;
    return 1;
}

/* The lowest stack index that an opcode may take from: nothing below the last mark. */
static size_t floor_of(const Reader *r)
{
    return r->mark_count ? r->marks[r->mark_count - 1] : 0;
}

/* Puts a finished container in place of the open one, and where the memo names it. */
static void close_at(Reader *r, Value *open, Value closed)
{
    if (open->memo) {
        Value *known = &r->memo[open->memo - 1];
        if (known->tag == OPEN && known->bits == open->bits) *known = closed;
    }
    *open = closed;
}

/* A value that is used is complete: what is still open holds nothing. */
static int seal(Reader *r, Value *value)
{
    if (value->tag >= NONE && value->tag <= NODE) return 1;
    if (value->tag != OPEN_LIST && value->tag != OPEN_DICT) return 0;
    Value closed;
    if (!intern(r, value->tag == OPEN_LIST ? LIST : DICT, NULL, 0, &closed)) return 0;
    close_at(r, value, closed);
    return 1;
}

static int seal_all(Reader *r, Value *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!seal(r, &values[i])) return 0;
    return 1;
}

static const Node *text_node(const Reader *r, Value value)
{
    if (value.tag != NODE || r->nodes[value.bits].kind != TEXT) return NULL;
    return &r->nodes[value.bits];
}

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
    for (int i = RECORD_ID; i <= TIMEOUT; i++) {
        int64_t *out = &r->wide[i - RECORD_ID][at];
        int64_t least = i >= CREATED && i <= COMPLETED;  /* the recorder's JSON writes 0 for no time */
        if (!(i == DURATION ? duration(field[i], out) : number(field[i], least, out))) return 0;
    }
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

/* [] directly under the key "entries" of the top dict is the list of entries. */
static int open_list(Reader *r)
{
    Value list = {OPEN_LIST, 0, ++r->serial};
    int keyed = r->depth >= 2 && r->stack[0].tag == OPEN_DICT && r->depth % 2 == 0
        && (r->mark_count ? r->mark_count == 1 && r->marks[0] == 1 : r->depth == 2);
    const Node *key = keyed ? text_node(r, r->stack[r->depth - 1]) : NULL;
    if (key && key->field == ENTRIES_KEY) {
        if (r->has_entries) return 0;
        r->has_entries = 1;
        r->entries_at = r->depth;
        list.tag = ENTRIES;
    }
    return push(r, list);
}

/* Gives `count` values on top to the list below them. */
static int extend_list(Reader *r, size_t count)
{
    Value *items = r->stack + r->depth - count, *list = items - 1, closed;
    if (list->tag == ENTRIES) {
        for (size_t i = 0; i < count; i++)
            if (items[i].tag != ENTRY_DONE) return 0;
    } else {
        if (list->tag != OPEN_LIST || !seal_all(r, items, count)) return 0;
        if (!intern(r, LIST, items, count, &closed)) return 0;
        close_at(r, list, closed);
    }
    r->depth -= count;
    return 1;
}

/* Whether the dict at `at` is an entry: directly in the list, or after the place that stands for those done. */
static int is_entry(const Reader *r, size_t at)
{
    if (!r->has_entries || at <= r->entries_at || r->stack[r->entries_at].tag != ENTRIES) return 0;
    if (floor_of(r) > r->entries_at + 1) return 0;
    return at == r->entries_at + 1 || (at == r->entries_at + 2 && r->stack[at - 1].tag == ENTRY_DONE);
}

/* Gives `count` keys and values on top to the dict below them. */
static int extend_dict(Reader *r, size_t count)
{
    Value *items = r->stack + r->depth - count, *dict = items - 1, closed;
    size_t at = (size_t)(dict - r->stack);
    if (dict->tag != OPEN_DICT || count % 2) return 0;
    for (size_t i = 0; i < count; i += 2) {
        const Node *key = text_node(r, items[i]);
        if (!key) return 0;
        if (at == 0 && key->field == ENTRIES_KEY) {
            if (items[i + 1].tag != ENTRIES) return 0;
            items[i + 1] = (Value){NONE, 0, 0};
        } else if (!seal(r, &items[i + 1])) {
            return 0;
        }
    }
    if (is_entry(r, at)) {
        if (!add_entry(r, items, count)) return 0;
        *dict = (Value){ENTRY_DONE, 0, ++r->serial};
        r->depth = r->entries_at + 2;  /* one place stands for all that are done */
        r->stack[r->entries_at + 1] = *dict;
        return 1;
    }
    if (!intern(r, DICT, items, count, &closed)) return 0;
    close_at(r, dict, closed);
    r->depth -= count;
    return 1;
}

static int make_tuple(Reader *r, size_t count)
{
    if (r->depth - floor_of(r) < count) return 0;
    Value *items = r->stack + r->depth - count, closed;
    if (!seal_all(r, items, count) || !intern(r, TUPLE, items, count, &closed)) return 0;
    r->depth -= count;
    return push(r, closed);
}

/* Takes the last mark: how many values lie above it. 0 where there is none. */
static int take_mark(Reader *r, size_t *count)
{
    if (!r->mark_count) return 0;
    *count = r->depth - r->marks[--r->mark_count];
    return 1;
}

/* As take_mark, and there is a container below to put them in. */
static int take_marked(Reader *r, size_t *count)
{
    return take_mark(r, count) && r->depth - floor_of(r) > *count;
}

static int remember(Reader *r, size_t index)
{
    if (index >= MEMO_MAX || r->depth <= floor_of(r)) return 0;
    if (index >= r->memo_room) {
        size_t before = r->memo_room;
        size_t need = index + 1 < 1024 ? 1024 : index + 1;
        if (!grow((void **)&r->memo, &r->memo_room, need, sizeof(Value), MEMO_MAX)) return 0;
        memset(r->memo + before, 0, (r->memo_room - before) * sizeof(Value));
    }
    Value *top = &r->stack[r->depth - 1], kept = *top;
    if (top->tag > NODE) {
        kept = (Value){OPEN, 0, top->bits};
        top->memo = (uint32_t)index + 1;
    }
    if (r->memo[index].tag == ABSENT) r->memo_count++;
    r->memo[index] = kept;
    return 1;
}

static int recall(Reader *r, size_t index)
{
    if (index >= r->memo_room) return 0;
    Value known = r->memo[index];
    return known.tag != ABSENT && known.tag != OPEN && push(r, known);
}

static uint64_t little(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

static int push_integer(Reader *r, int64_t value)
{
    return push(r, (Value){INTEGER, 0, (uint64_t)value});
}

static int push_signed(Reader *r, const uint8_t *bytes, size_t count)
{
    uint64_t value = little(bytes, count);
    if (count && count < 8 && bytes[count - 1] & 0x80) value |= ~(uint64_t)0 << (8 * count);
    return push_integer(r, (int64_t)value);
}

static int push_float(Reader *r, const uint8_t *bytes)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
    return push(r, (Value){FLOATING, 0, bits});
}

static int push_text(Reader *r, size_t length)
{
    Value text;
    if (length > STRING_MAX || length > r->size - r->at) return 0;
    if (!intern_text(r, r->at, length, &text)) return 0;
    r->at += length;
    return push(r, text);
}

/* Bytes after each opcode that are always there; LONG1 and texts have more. */
static size_t argument_size(uint8_t opcode)
{
    switch (opcode) {
    case 'K': case 'h': case 'q': case 0x80: case 0x8a: case 0x8c: return 1;
    case 'M': return 2;
    case 'J': case 'j': case 'r': case 'X': return 4;
    case 'G': case 0x95: return 8;
    default: return 0;
    }
}

/* One opcode other than STOP; 0 declines. `argument` has argument_size bytes. */
static int step(Reader *r, uint8_t opcode, const uint8_t *argument)
{
    size_t count;
    switch (opcode) {
    case 0x80: return *argument <= 5 && r->at == 2;
    case 0x95: return little(argument, 8) <= r->size - r->at;
    case '}': return push(r, (Value){OPEN_DICT, 0, ++r->serial});
    case ']': return open_list(r);
    case '(':
        if (r->mark_count >= MARKS_MAX) return 0;
        r->marks[r->mark_count++] = r->depth;
        return 1;
    case 'N': return push(r, (Value){NONE, 0, 0});
    case 0x88: return push(r, (Value){TRUE_, 0, 0});
    case 0x89: return push(r, (Value){FALSE_, 0, 0});
    case 'K': case 'M': return push_integer(r, (int64_t)little(argument, opcode == 'K' ? 1 : 2));
    case 'J': return push_signed(r, argument, 4);
    case 'G': return push_float(r, argument);
    case 'X': return push_text(r, (size_t)little(argument, 4));
    case 0x8c: return push_text(r, *argument);
    case 'q': return remember(r, *argument);
    case 'r': return remember(r, (size_t)little(argument, 4));
    case 0x94: return remember(r, r->memo_count);
    case 'h': return recall(r, *argument);
    case 'j': return recall(r, (size_t)little(argument, 4));
    case ')': return make_tuple(r, 0);
    case 0x85: case 0x86: case 0x87: return make_tuple(r, (size_t)opcode - 0x84);
    case 't': return take_mark(r, &count) && make_tuple(r, count);
    case 'a': return r->depth - floor_of(r) >= 2 && extend_list(r, 1);
    case 's': return r->depth - floor_of(r) >= 3 && extend_dict(r, 2);
    case 'e': return take_marked(r, &count) && extend_list(r, count);
    case 'u': return take_marked(r, &count) && extend_dict(r, count);
    case 0x8a:
        count = *argument;
        if (count > 8 || count > r->size - r->at) return 0;
        r->at += count;
        return push_signed(r, r->data + r->at - count, count);
    default: return 0;
    }
}

/* Reads up to STOP. The top of the dump is then the only value. */
static int walk(Reader *r)
{
    while (r->at < r->size) {
        uint8_t opcode = r->data[r->at++];
        if (opcode == '.') break;
        size_t width = argument_size(opcode);
        if (width > r->size - r->at) return 0;
        r->at += width;
        if (!step(r, opcode, r->data + r->at - width)) return 0;
    }
    if (!r->at || r->data[r->at - 1] != '.' || r->depth != 1 || r->mark_count) return 0;
    return r->stack[0].tag == NODE && r->nodes[r->stack[0].bits].kind == DICT;
}

static PyObject *made(Reader *r, Value value);

static PyObject *made_sequence(Reader *r, const Node *node)
{
    int listed = node->kind == LIST;
    PyObject *whole = listed ? PyList_New(node->count) : PyTuple_New(node->count);
    for (uint32_t i = 0; whole && i < node->count; i++) {
        PyObject *item = made(r, r->children[node->start + i]);
        if (!item || (listed ? PyList_SetItem(whole, i, item) : PyTuple_SetItem(whole, i, item)) < 0)
            Py_CLEAR(whole);
    }
    return whole;
}

static PyObject *made_dict(Reader *r, const Node *node)
{
    PyObject *whole = PyDict_New();
    for (uint32_t i = 0; whole && i < node->count; i += 2) {
        PyObject *key = made(r, r->children[node->start + i]);
        PyObject *value = key ? made(r, r->children[node->start + i + 1]) : NULL;
        if (!value || PyDict_SetItem(whole, key, value) < 0) Py_CLEAR(whole);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return whole;
}

/* The Python object of a value; each node is made once. Recursion is bounded by DEPTH_MAX. */
static PyObject *made(Reader *r, Value value)
{
    double real;
    switch (value.tag) {
    case TRUE_: return PyBool_FromLong(1);
    case FALSE_: return PyBool_FromLong(0);
    case INTEGER: return PyLong_FromLongLong((int64_t)value.bits);
    case FLOATING:
        memcpy(&real, &value.bits, sizeof real);
        return PyFloat_FromDouble(real);
    case NODE: break;
    default: Py_RETURN_NONE;
    }
    Node *node = &r->nodes[value.bits];
    if (!node->made) {
        const char *text = (const char *)r->data + node->start;
        node->made = node->kind == TEXT ? PyUnicode_DecodeUTF8(text, node->count, "strict")
            : node->kind == DICT        ? made_dict(r, node)
                                        : made_sequence(r, node);
    }
    Py_XINCREF(node->made);
    return node->made;
}

static PyObject *made_table(Reader *r, const Table *table)
{
    PyObject *list = PyList_New((Py_ssize_t)table->count);
    for (size_t i = 0; list && i < table->count; i++) {
        PyObject *item = made(r, (Value){NODE, 0, table->nodes[i]});
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) Py_CLEAR(list);
    }
    return list;
}

static int set_column(PyObject *columns, const char *name, const void *items, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(items, (Py_ssize_t)size);
    int failed = !bytes || PyDict_SetItemString(columns, name, bytes) < 0;
    Py_XDECREF(bytes);
    return !failed;
}

static PyObject *made_columns(const Reader *r)
{
    PyObject *columns = PyDict_New();
    int done = columns != NULL;
    for (int i = 0; done && i < WIDE; i++)
        done = set_column(columns, wide_name[i], r->wide[i], r->rows * sizeof(int64_t));
    for (int i = 0; done && i < TABLES; i++)
        done = set_column(columns, table_name[i], r->narrow[i], r->rows * sizeof(int32_t));
    done = done && set_column(columns, "state", r->state, r->rows)
        && set_column(columns, "retired", r->retired, r->rows);
    if (!done) Py_CLEAR(columns);
    return columns;
}

static PyObject *result(Reader *r)
{
    PyObject *parts[] = {
        made(r, r->stack[0]), made_columns(r), made_table(r, &r->tables[GROUPS]),
        made_table(r, &r->tables[SIGNATURES]), made_table(r, &r->tables[STACKS]),
    };
    int complete = 1;
    for (int i = 0; i < 5; i++) complete = complete && parts[i];
    PyObject *whole = complete ? PyTuple_Pack(5, parts[0], parts[1], parts[2], parts[3], parts[4]) : NULL;
    for (int i = 0; i < 5; i++) Py_XDECREF(parts[i]);
    return whole;
}

static void clear(Reader *r)
{
    for (size_t i = 0; i < r->node_count; i++) Py_XDECREF(r->nodes[i].made);
    for (int i = 0; i < WIDE; i++) free(r->wide[i]);
    for (int i = 0; i < TABLES; i++) {
        free(r->narrow[i]);
        free(r->tables[i].nodes);
    }
    free(r->state);
    free(r->retired);
    free(r->stack);
    free(r->memo);
    free(r->nodes);
    free(r->children);
    free(r->slots);
}

static PyObject *read_pickle(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *held;
    char *data;
    Py_ssize_t size, rows_max;
    if (!PyArg_ParseTuple(args, "Sn:read", &held, &rows_max)) return NULL;
    if (PyBytes_AsStringAndSize(held, &data, &size) < 0) return NULL;
    Reader reader = {.data = (const uint8_t *)data, .size = (size_t)size,
                     .rows_max = rows_max > 0 ? (size_t)rows_max : 0};
    PyObject *answer = walk(&reader) ? result(&reader) : Py_NewRef(Py_None);
    clear(&reader);
    return answer;
}

static PyMethodDef methods[] = {
    {"read", read_pickle, METH_VARARGS,
     "read(data, entries_max, /)\n--\n\n"
     "(top of the dump, columns, groups, signatures, stacks), or None where the pickle is unusual."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_pickle_columns", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__pickle_columns(void)
{
    return PyModuleDef_Init(&definition);
}
