/* Values, interned by content, and the stack they lie on. Part of _pickle_columns.c. */
#ifndef PICKLE_VALUES_H
#define PICKLE_VALUES_H

#include "_pickle_reader.h"

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

/* Takes `count` values off. A form whose number is taken out of its entry is none. */
static void drop(Reader *r, size_t count)
{
    r->depth -= count;
    if (r->depth <= r->forms.held_at) r->forms.recording = 0;
}

static uint64_t little(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

/* A number of `count` bytes, at most 8, by its sign. */
static int64_t widened(uint64_t value, size_t count)
{
    unsigned spare = 64 - 8 * (unsigned)count;
    return count ? (int64_t)(value << spare) >> spare : 0;
}

static Value floating(const uint8_t *bytes)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
    return (Value){FLOATING, 0, bits};
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

/* Makes the memo reach from its old end to `end`, where from `from` on the caller fills it. */
static int reach(Reader *r, size_t from, size_t end)
{
    if (end <= r->memo_end) return 1;
    if (!grow((void **)&r->memo, &r->memo_room, end, sizeof(Value), MEMO_MAX)) return 0;
    if (from > r->memo_end) memset(r->memo + r->memo_end, 0, (from - r->memo_end) * sizeof(Value));
    r->memo_end = end;
    return 1;
}

#endif
