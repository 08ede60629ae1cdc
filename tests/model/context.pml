/* One context of a shard: a reader, a writer W1 that appends and truncates, a writer W2 that takes
   the context over while W1 is alive but has no connection, and X, another session that takes every
   free chunk. It checks that what is pinned stays as it is, that a published token is never lost, and that
   no late store lands in a chunk that went to somebody else.

   What the daemon does runs inside its caller under `daemon_busy`: the daemon is one thread and the
   caller waits for the reply. It is NOT atomic against readers and writers, who use memory only.
   One 64-bit word is two bytes here that are read and written in one atomic step. Sequential
   consistency is assumed; weak_memory.pml is about the rest. Chains that share more, and more generations,
   are in shared_prefix.pml.

     step              code
     enter_daemon      one message: Core::append, truncate, open; the sweep is Core::end_message
     needs_tail_copy   Shard::needs_tail_copy; the copy is Shard::copy_tail, one chunk more Shard::link
     end_generation    Shard::end_generation: KeptHeads::keep, exchange_length, StoreGate::store_head
     take_over         Shard::cut_off_writers: the loop around its compare-and-swap ends with one that
                       returns what it replaced, an exchange of the generation alone
     sweep_kept_heads  Shard::sweep: PageTable::scan_pins reads all pin words, then KeptHeads::drop_if
     drop_owner        ChunkPool::unref
     pin, confirm_pin  PinWords::claim and confirm_pin (shared/words.hpp), in Attachment::look for the
                       reader, HeldContext::try_append for writers
     publish           Writer::publish

   A higher epoch (W2's first way) is Shard::retire and Shard::open in one message there: two generations,
   of which nobody can pin the one between, for its head is free. Here they are one, and slot_reuse.pml
   has the two.

   Each flag makes one tempting mistake, and the check then has to fail:
     NOWPIN     a writer does not pin what it writes
     LIBCOW     the copy of a shared tail chunk is linked first and filled by the library
     GENPIN     no kept heads: cut chunks are free unless a pin names exactly the outgoing generation
     NORECHECK  the head is not loaded once more after the length
     SPLIT      generation and tip are two stores, generation first
     TIPFIRST   generation and tip are two stores, tip first
     KEEPGRANT  a take-over keeps chunks that were granted and not yet written
     STALELEN   a take-over loads the length and then stores it, instead of exchanging it */

#ifndef APPENDS
#define APPENDS 2      /* operations of W1 */
#endif
#define CHUNKS 5       /* chunks 1 to 4; 0 is "none" */
#define CHUNK_TOKENS 2
#define LENGTH_MAX 4
#define GENERATION_MAX 5
#define KEPT_MAX 4

#define FREE 0
#define OURS 1
#define ANOTHER 2      /* of session X */
#define ASIDE 3        /* GENPIN: cut, and pinned when it was cut */

#define NOISE 77       /* contents of a new chunk */
#define OTHERS_DATA 99 /* contents of X's chunks; ours are 10 * mark + position */

/* One record per chunk: the daemon's tables, and the bytes of its tokens. */
byte previous[CHUNKS], ordinal[CHUNKS], owners[CHUNKS], used_by[CHUNKS];
byte aside_generation[CHUNKS];
byte data[10];

byte head_generation = 1, head_tip = 0;             /* the head word */
byte length_generation = 1, length_tokens = 0;      /* the length word */
byte pin_reader = 0, pin_w1 = 0, pin_w2 = 0;        /* the pin words; 0 claims nothing */
byte base_tip = 0;                                  /* the tip that this generation began with */
byte kept_generation[KEPT_MAX], kept_tip[KEPT_MAX]; /* the kept heads; generation 0 is unused */
byte holder = 1;                                    /* the writer with the lease */
byte published = 0;                                 /* the length that a writer was told it has */
bit daemon_busy = 0;

inline enter_daemon() { atomic { daemon_busy == 0 -> daemon_busy = 1 } }
/* Temporaries are cleared, so that states that differ only in them are one state. */
inline leave_daemon() { atomic { daemon_busy = 0; chunk = 0; tip = 0; i = 0; at = 0; is_pinned = 0 } }

inline take_chunk(result) {
  atomic {
    result = 1;
    do :: result < CHUNKS && used_by[result] != FREE -> result++ :: else -> break od;
    if
    :: result < CHUNKS ->
       used_by[result] = OURS; owners[result] = 1; previous[result] = 0; ordinal[result] = 0;
       data[result * 2] = NOISE; data[result * 2 + 1] = NOISE
    :: else -> result = 0
    fi
  }
}

/* Takes one owner from a chunk; the last owner takes the chunk and its claim on the one before. */
inline drop_owner(first) {
  at = first;
  do
  :: at != 0 ->
     owners[at]--;
     if :: owners[at] == 0 -> used_by[at] = FREE; at = previous[at] :: else -> at = 0 fi
  :: else -> break
  od
}

inline add_kept_head() {
  if
  :: head_tip != 0 ->
     i = 0;
     do :: i < KEPT_MAX && kept_generation[i] != 0 -> i++ :: else -> break od;
     assert(i < KEPT_MAX);
     kept_generation[i] = head_generation; kept_tip[i] = head_tip
  :: else
  fi
}

/* All pin words are read, one by one, and then kept heads go that none of them named. */
inline sweep_kept_heads() {
  if
  :: kept_generation[0] + kept_generation[1] + kept_generation[2] + kept_generation[3] != 0 ->
     seen[0] = pin_reader;
     seen[1] = pin_w1;
     atomic {
       seen[2] = pin_w2;
       i = 0;
       do
       :: i < KEPT_MAX ->
          if
          :: kept_generation[i] != 0 && seen[0] != kept_generation[i] && seen[1] != kept_generation[i] &&
             seen[2] != kept_generation[i] ->
             drop_owner(kept_tip[i]); kept_generation[i] = 0; kept_tip[i] = 0
          :: else
          fi;
          i++
       :: else -> break
       od;
       seen[0] = 0; seen[1] = 0; seen[2] = 0
     }
  :: else
  fi
}

inline store_head(next_tip) {
#if defined(TIPFIRST)
  head_tip = next_tip; head_generation = head_generation + 1
#elif defined(SPLIT)
  head_generation = head_generation + 1; head_tip = next_tip
#else
  atomic { head_generation = head_generation + 1; head_tip = next_tip }
#endif
}

/* The ancestor of the head's tip that covers `tokens`. */
inline find_ancestor(tokens) {
  tip = head_tip;
  do
  :: tip != 0 && (tokens == 0 || ordinal[tip] > (tokens - 1) / CHUNK_TOKENS) -> tip = previous[tip]
  :: else -> break
  od
}

#ifndef GENPIN
/* The end of a generation: kept head, length, head, sweep. */
inline end_generation(next_tip, next_length) {
  atomic { add_kept_head(); if :: next_tip != 0 -> owners[next_tip]++ :: else fi }
  atomic { length_generation = head_generation + 1; length_tokens = next_length; base_tip = next_tip }
  store_head(next_tip);
  sweep_kept_heads()
}

/* The same contents for a new holder: keeps the count that the exchange returns. */
inline take_over() {
  atomic { add_kept_head() }
#ifdef STALELEN
  length = length_tokens;
  atomic { length_generation = head_generation + 1; length_tokens = length }
#else
  atomic { length_generation = head_generation + 1; length = length_tokens }
#endif
  assert(length == published);
#ifdef KEEPGRANT
  tip = head_tip;
#else
  find_ancestor(length);
#endif
  atomic { if :: tip != 0 -> owners[tip]++ :: else fi; base_tip = tip }
  store_head(tip);
  sweep_kept_heads()
}
#else
inline end_generation(next_tip, next_length) {
  atomic { length_generation = head_generation + 1; length_tokens = next_length }
  atomic { at = head_tip; head_generation = head_generation + 1; head_tip = next_tip; base_tip = next_tip }
  is_pinned = 0;
  if :: pin_reader == head_generation - 1 -> is_pinned = 1 :: else fi;
  if :: pin_w1 == head_generation - 1 -> is_pinned = 1 :: else fi;
  if :: pin_w2 == head_generation - 1 -> is_pinned = 1 :: else fi;
  do
  :: at != 0 && at != next_tip ->
     i = previous[at];
     if
     :: is_pinned -> used_by[at] = ASIDE; aside_generation[at] = head_generation - 1
     :: else -> used_by[at] = FREE
     fi;
     at = i
  :: else -> break
  od;
  if :: is_pinned && next_tip != 0 -> owners[next_tip] = 2 :: else fi;
  at = 1;
  do
  :: at < CHUNKS ->
     if
     :: used_by[at] == ASIDE && pin_reader != aside_generation[at] &&
        pin_w1 != aside_generation[at] && pin_w2 != aside_generation[at] -> used_by[at] = FREE
     :: else
     fi;
     at++
  :: else -> break
  od
}

inline take_over() { length = length_tokens; tip = head_tip; end_generation(tip, length) }
#endif

inline truncate_to(tokens) { find_ancestor(tokens); end_generation(tip, tokens) }

/* Only the chunk at which the generation began can have two owners. */
#define NEEDS_TAIL_COPY (length_tokens % CHUNK_TOKENS != 0 && base_tip != 0 && \
  ordinal[base_tip] == length_tokens / CHUNK_TOKENS && owners[base_tip] > 1)

/* Makes one more token writable, or not (is_ok). */
inline grant(me) {
  is_ok = 0; copy_from = 0;
  if
  :: holder != me || length_generation != head_generation
  :: else ->
     if
     :: NEEDS_TAIL_COPY ->
        take_chunk(chunk);
        if
        :: chunk != 0 ->
           previous[chunk] = previous[base_tip]; ordinal[chunk] = ordinal[base_tip];
#ifdef LIBCOW
           copy_from = base_tip;
#else
           data[chunk * 2] = data[base_tip * 2];
#endif
           if :: previous[chunk] != 0 -> owners[previous[chunk]]++ :: else fi;
           end_generation(chunk, length_tokens);
           owners[chunk]--;
           is_ok = 1
        :: else
        fi
     :: length_tokens % CHUNK_TOKENS != 0 && !NEEDS_TAIL_COPY -> is_ok = 1
     :: length_tokens % CHUNK_TOKENS == 0 ->
        if
        :: head_tip != 0 && ordinal[head_tip] >= length_tokens / CHUNK_TOKENS -> is_ok = 1
        :: else ->
           take_chunk(chunk);
           if
           :: chunk != 0 ->
              previous[chunk] = head_tip; ordinal[chunk] = length_tokens / CHUNK_TOKENS;
              head_tip = chunk; is_ok = 1                     /* the same generation */
           :: else
           fi
        fi
     fi
  fi
}

/* The second half of pinning: the length, then the head, whose tip counts. */
inline confirm_pin(generation, tokens, last, is_valid) {
  atomic { tokens = length_tokens; is_valid = (length_generation == generation) }
#ifdef NORECHECK
  last = head_tip
#else
  atomic { last = head_tip; is_valid = is_valid && (head_generation == generation) }
#endif
}

/* `mark` tells one append's bytes from another's. */
inline append(me, my_pin, mark) {
  enter_daemon(); grant(me); generation = head_generation; leave_daemon();
  if
  :: is_ok ->
#ifdef NOWPIN
     confirm_pin(generation, length, at, is_ok);
#else
     my_pin = generation;
     confirm_pin(generation, length, at, is_ok);
#endif
     do
     :: is_ok && at != 0 && ordinal[at] > length / CHUNK_TOKENS -> at = previous[at]
     :: else -> break
     od;
     if
     :: is_ok && at != 0 ->
#ifdef LIBCOW
        if :: copy_from != 0 -> data[at * 2] = data[copy_from * 2] :: else fi;
#endif
        data[at * 2 + length % CHUNK_TOKENS] = 10 * mark + length; /* a plain store nobody can fence */
        atomic {                                              /* publish */
          if
          :: length_generation == generation && length_tokens == length ->
             length_tokens = length + 1; published = length + 1
          :: else
          fi
        }
     :: else
     fi;
     my_pin = 0
  :: else
  fi;
  atomic { generation = 0; length = 0; at = 0; copy_from = 0; is_ok = 0 }
}

active proctype W1() {
  byte count = 0, generation, length, at, chunk, tip, i, copy_from, seen[3];
  bit is_ok, is_pinned;
  do
  :: count < APPENDS ->
     count++;
     if
     :: length_tokens < LENGTH_MAX -> append(1, pin_w1, count)
     :: enter_daemon();
        if
        :: holder == 1 && length_tokens > 0 && head_generation < GENERATION_MAX ->
           length = length_tokens - 1; published = length; truncate_to(length); length = 0
        :: else
        fi;
        leave_daemon()
     fi
  :: else -> break
  od
}

active proctype W2() {
  byte generation, length, at, chunk, tip, i, copy_from, seen[3];
  bit is_ok, is_pinned;
  enter_daemon();
  if
  :: head_generation < GENERATION_MAX ->
     holder = 2;
     if
     :: published = 0; truncate_to(0)                         /* a higher epoch supersedes */
     :: take_over()
     fi
  :: else
  fi;
  length = 0;
  leave_daemon();
  append(2, pin_w2, 4);
  append(2, pin_w2, 5)
}

active proctype Reader() {
  byte generation, length, at, i, chunks[2], values[4];
  bit is_valid;
again:
  generation = head_generation;
  pin_reader = generation;
  confirm_pin(generation, length, at, is_valid);
  if :: !is_valid -> atomic { pin_reader = 0; generation = 0; length = 0; at = 0 } goto again :: else fi;
  do
  :: at != 0 ->
     atomic {
       if :: ordinal[at] < 2 && chunks[ordinal[at]] == 0 -> chunks[ordinal[at]] = at :: else fi;
       at = previous[at]
     }
  :: else -> break
  od;
  i = 0;
  do                                                          /* its own bytes, each in its place */
  :: i < length && i < 4 ->
     assert(chunks[i / CHUNK_TOKENS] != 0);
     values[i] = data[chunks[i / CHUNK_TOKENS] * 2 + i % CHUNK_TOKENS];
     assert(values[i] % 10 == i && values[i] < 60);
     i++
  :: else -> break
  od;
  i = 0;
  do                                                          /* and they stay while pinned */
  :: i < length && i < 4 ->
     assert(data[chunks[i / CHUNK_TOKENS] * 2 + i % CHUNK_TOKENS] == values[i]);
     i++
  :: else -> break
  od;
  pin_reader = 0;
  atomic {
    generation = 0; length = 0; i = 0;
    chunks[0] = 0; chunks[1] = 0; values[0] = 0; values[1] = 0; values[2] = 0; values[3] = 0
  }
}

active proctype X() {
  byte chunk, count = 0;
  do
  :: count < 2 ->
     atomic {
       chunk = 1;
       do :: chunk < CHUNKS && used_by[chunk] != FREE -> chunk++ :: else -> break od;
       if
       :: chunk < CHUNKS ->
          used_by[chunk] = ANOTHER;
          data[chunk * 2] = OTHERS_DATA; data[chunk * 2 + 1] = OTHERS_DATA
       :: else -> chunk = 0
       fi
     }
     if
     :: chunk != 0 ->
        assert(data[chunk * 2] == OTHERS_DATA && data[chunk * 2 + 1] == OTHERS_DATA);
        atomic {
          assert(data[chunk * 2] == OTHERS_DATA && data[chunk * 2 + 1] == OTHERS_DATA);
          used_by[chunk] = FREE; chunk = 0
        }
     :: else
     fi;
     count++
  :: else -> break
  od
}
