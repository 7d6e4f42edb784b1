/* The opcodes, one by one. Part of _pickle_columns.c. */
#ifndef PICKLE_WALK_H
#define PICKLE_WALK_H

#include "_pickle_forms.h"

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
    drop(r, count);
    return 1;
}

/* The entry on top is over: one place stands for all that are done. */
static int entry_done(Reader *r)
{
    Value done = {ENTRY_DONE, 0, ++r->serial};
    r->depth = r->entries_at + 1;
    return push(r, done);
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
        if (r->forms.recording && r->forms.entry_at == at) keep_form(r, items, count);
        return entry_done(r);
    }
    if (!intern(r, DICT, items, count, &closed)) return 0;
    close_at(r, dict, closed);
    drop(r, count);
    return 1;
}

static int make_tuple(Reader *r, size_t count)
{
    if (r->depth - floor_of(r) < count) return 0;
    Value *items = r->stack + r->depth - count, closed;
    if (!seal_all(r, items, count) || !intern(r, TUPLE, items, count, &closed)) return 0;
    drop(r, count);
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
    int is_new = index >= r->memo_end || r->memo[index].tag == ABSENT;
    if (index >= MEMO_MAX || r->depth <= floor_of(r) || !reach(r, index, index + 1)) return 0;
    Value *top = &r->stack[r->depth - 1], kept = *top;
    if (top->tag > NODE) {
        kept = (Value){OPEN, 0, top->bits};
        top->memo = (uint32_t)index + 1;
    }
    if (is_new) r->memo_count++;
    else r->forms.recording = 0, r->forms.off = 1;  /* one number, two values: bytes prove no more */
    r->memo[index] = kept;
    if (r->forms.recording) note_put(r, index);
    return 1;
}

static int recall(Reader *r, size_t index)
{
    if (index >= r->memo_end) return 0;
    Value known = r->memo[index];
    return known.tag != ABSENT && known.tag != OPEN && push(r, known);
}

static int push_integer(Reader *r, int64_t value)
{
    if (!push(r, (Value){INTEGER, 0, (uint64_t)value})) return 0;
    if (r->forms.recording) note_number(r);
    return 1;
}

static int push_signed(Reader *r, const uint8_t *bytes, size_t count)
{
    return push_integer(r, widened(little(bytes, count), count));
}

static int push_float(Reader *r, const uint8_t *bytes)
{
    if (!push(r, floating(bytes))) return 0;
    if (r->forms.recording) note_number(r);
    return 1;
}

static int push_text(Reader *r, size_t length)
{
    Value text;
    if (length > STRING_MAX || length > r->size - r->at) return 0;
    if (!intern_text(r, r->at, length, &text)) return 0;
    r->at += length;
    return push(r, text);
}

/* One opcode other than STOP; 0 declines. `argument` has argument_size bytes. */
static int step(Reader *r, uint8_t opcode, const uint8_t *argument)
{
    size_t count;
    switch (opcode) {
    case 0x80: return *argument <= 5 && r->at == 2;
    case 0x95:
        r->forms.recording = 0;  /* what it holds depends on where it is */
        return little(argument, 8) <= r->size - r->at;
    case '}':
        if (is_entry(r, r->depth)) {
            if (repeated(r)) return entry_done(r);
            record_form(r);
        }
        return push(r, (Value){OPEN_DICT, 0, ++r->serial});
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
        r->opcode_at = r->at;
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

#endif
