/* What the reader of pickled dumps holds: its bounds, its values, its columns. Part of _pickle_columns.c. */
#ifndef PICKLE_READER_H
#define PICKLE_READER_H

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
#define FORMS_MAX 1024u
#define FORM_SLOTS_MAX 256u     /* a stack of 64 frames assigns as many memo numbers, or twice */
#define FORM_PARTS_MAX (1u << 16)  /* slots, and memo values, of all forms */
#define RECENT 16u              /* forms that are tried before an entry is read step by step */
#define SPARE_MAX (4u << 20)    /* bytes that are kept for the next file; 40,000 frames written one by one need half */
#define DURATION_MAX_MS 9.0e12  /* as recorder_rows */

/* ABSENT is no value of a pickle: a field that an entry lacks. From OPEN_LIST on, values live on the stack
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

/* Where an entry may differ from an earlier one and still be read as it: a memo number (NO_FIELD), or the
 * number of a field. `at`, `end`: offsets from the start of the entry. */
typedef struct { uint32_t at, end; uint8_t field; } Slot;

/* An entry that was read: its bytes, its slots, what it put in the memo, its row. `next`: 1 + the form of the
 * entry that came after it last. */
typedef struct {
    size_t start, size, slots, puts;
    uint32_t slot_count, put_count, row, next;
    uint32_t fields;  /* columns that the slots fill, as bits */
} Form;

typedef struct {
    Form *known; size_t count, room;
    Slot *slots; size_t slot_end, slot_room;   /* of all forms, one after the other */
    Value *puts; size_t put_end, put_room;
    uint32_t recent[RECENT], last;             /* 1 + the form; `last`: of the entry before, 0 for none */
    Form open;                                 /* the one being recorded while `recording` */
    size_t entry_at;                           /* where its entry lies on the stack */
    size_t held_at;                            /* where its last number lies: what is there must stay */
    size_t first_put;
    int recording, off;
} Forms;

typedef struct {
    const uint8_t *data;
    size_t size, at;
    Value *stack; size_t depth, stack_room;
    size_t marks[MARKS_MAX]; size_t mark_count;
    Value *memo; size_t memo_room, memo_count, memo_end;  /* nothing lies from `memo_end` on */
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
    size_t opcode_at;
    Forms forms;
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

#endif
