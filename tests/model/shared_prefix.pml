/* Chains that share their beginning: a head and the kept heads of its context, and the head of a
   second context that began at a chunk of the first. The two rules that are all of the memory management:
   "An owner of a chunk is a head, a kept head, or a child chunk. Free = no owner. Written in place =
   exactly one owner." Here owners are counted anew from heads, kept heads and children after every
   operation, and a reference keeps what each context has published, so that every byte that a reader sees is
   compared with what it has to be.

   The daemon makes no second context from a chunk of the first by itself (Rebuild::lose_overlaps gives both
   up); the model does, because the rules have to be enough for it.

   Each operation of the daemon is one step, its sweep included, and so are a pin and its check: how they fall
   between each other's single stores is what context.pml is about. Here there are more generations,
   more kept heads and more owners. A freed chunk is another session's at once.

     step             code (daemon/core)
     needs_tail_copy  Shard::needs_tail_copy: only the chunk at which the generation began is looked at
     copy_tail        Shard::copy_tail
     link             Shard::link
     end_generation   Shard::end_generation, a kept head only where there is a chunk
     sweep            Shard::sweep: PageTable::scan_pins, then KeptHeads::drop_if
     let_go           ChunkPool::unref
     ancestor         ChunkPool::ancestor

   Each flag makes one mistake, and the check then has to fail. With NORULES the owners are not counted, so that
   the mistake has to show in somebody's bytes, and does:
     INPLACE      no tail is copied: it is written in place with two owners
     STALEBASE    the chunk at which a generation began is noted when a context opens, not later
     KEPTNOOWN    a kept head is no owner: its chain loses the head's claim at once
     NOREFNEXT    the head of the next generation is no owner
     COPYNOREF    a copied tail is no owner of the chunk before it
     FREECHAIN    letting go of a kept head frees its whole chain, whoever else owns a part of it
     BLINDSWEEP   kept heads are let go without a look at the pins
     NEWESTONLY   only a pin of the generation just ended counts */

#ifndef OPERATIONS
#define OPERATIONS 2   /* of the daemon */
#endif
#ifndef APPENDS
#define APPENDS 1      /* of each writer */
#endif
#define CHUNKS 6       /* chunks 1 to 5; 0 is "none" */
#define LENGTH_MAX 4   /* in chunks of two tokens */
#define KEPT_MAX 5
#define NONE 255       /* the tip of a context that ended */

#define FREE 0
#define OURS 1
#define OTHERS_DATA 99

/* By chunk. */
byte previous[CHUNKS], ordinal[CHUNKS], owners[CHUNKS], used_by[CHUNKS];
byte data[12];
/* By context. */
byte generation[2], tip[2], base[2], length[2];
byte holder[2];                           /* the writer with the lease; 0 is nobody */
byte content[8];                          /* the reference: what each published token has to be */
/* Kept heads; tip 0 is unused. */
byte kept_context[KEPT_MAX], kept_generation[KEPT_MAX], kept_tip[KEPT_MAX];
/* Pin words {context, generation}: of the reader and both writers; generation 0 claims nothing. */
byte pin_context[3], pin_generation[3];
byte working = 3;                         /* processes that may still pin */
hidden byte x, y, n, i;

inline take_chunk(result) {
  result = 1;
  do :: result < CHUNKS && used_by[result] != FREE -> result++ :: else -> break od;
  if :: result == CHUNKS -> result = 0 :: else fi
}

inline let_go(first) {
  x = first;
  do
  :: x != 0 ->
     owners[x]--;
#ifdef FREECHAIN
     owners[x] = 0;
#endif
     if :: owners[x] == 0 ->
        used_by[x] = FREE; data[x * 2] = OTHERS_DATA; data[x * 2 + 1] = OTHERS_DATA;
        n = previous[x]; previous[x] = 0; ordinal[x] = 0; x = n; n = 0
     :: else -> x = 0 fi
  :: else -> break
  od
}

inline ancestor(from, tokens, result) {
  result = from;
  do
  :: result != 0 && (tokens == 0 || ordinal[result] > (tokens - 1) / 2) -> result = previous[result]
  :: else -> break
  od
}

/* Owners, counted. */
inline check_rules() {
#ifndef NORULES
  x = 1;
  do
  :: x < CHUNKS ->
     n = (tip[0] == x) + (tip[1] == x);
     y = 0;
     do :: y < KEPT_MAX -> n = n + (kept_tip[y] == x); y++ :: else -> break od;
     y = 1;
     do :: y < CHUNKS -> n = n + (used_by[y] == OURS && previous[y] == x); y++ :: else -> break od;
     assert(owners[x] == n && (used_by[x] == OURS) == (n > 0));
     x++
  :: else -> break
  od;
#endif
  x = 0; y = 0; n = 0
}

inline end_generation(c, next_tip, next_length) {
  if
  :: tip[c] != 0 ->
     y = 0;
     do :: y < KEPT_MAX && kept_tip[y] != 0 -> y++ :: else -> break od;
     assert(y < KEPT_MAX);
     kept_context[y] = c; kept_generation[y] = generation[c]; kept_tip[y] = tip[c];
#ifdef KEPTNOOWN
     let_go(tip[c]);
#endif
     y = 0
  :: else
  fi;
#ifndef NOREFNEXT
  if :: next_tip != 0 && next_tip != NONE -> owners[next_tip]++ :: else fi;
#endif
  generation[c]++;
  tip[c] = next_tip;
  length[c] = next_length;
#ifndef STALEBASE
  base[c] = next_tip
#endif
}

inline sweep() {
  i = 0;
  do
  :: i < KEPT_MAX ->
     n = 0;
#ifndef BLINDSWEEP
     y = 0;
     do
     :: y < 3 -> n = n + (pin_generation[y] == kept_generation[i] && pin_context[y] == kept_context[i]); y++
     :: else -> break
     od;
#endif
#ifdef NEWESTONLY
     n = n * (kept_generation[i] + 1 == generation[kept_context[i]]);
#endif
     if
     :: kept_tip[i] != 0 && n == 0 ->
        y = kept_tip[i];
        kept_tip[i] = 0; kept_generation[i] = 0; kept_context[i] = 0;
#ifndef KEPTNOOWN
        let_go(y)
#endif
     :: else
     fi;
     i++
  :: else -> break
  od;
  y = 0; n = 0; i = 0
}

/* The lease, taken over from a writer that is alive but has no connection, and room for one more token of
   context c: in this chunk, or 0. */
inline grant(c, chunk) {
  d_step {
    if
    :: tip[c] != NONE && holder[c] != 0 && holder[c] != me ->
       ancestor(tip[c], length[c], chunk);
       end_generation(c, chunk, length[c])
    :: else
    fi;
    holder[c] = me;
    chunk = 0;
    if
    :: tip[c] == NONE || length[c] == LENGTH_MAX
#ifdef INPLACE
    :: false ->
#else
    :: tip[c] != NONE && length[c] < LENGTH_MAX && length[c] % 2 != 0 && base[c] != 0 && base[c] != NONE &&
       ordinal[base[c]] == length[c] / 2 && owners[base[c]] > 1 ->
#endif
       take_chunk(chunk);
       if
       :: chunk != 0 ->
          used_by[chunk] = OURS;
          previous[chunk] = previous[base[c]]; ordinal[chunk] = ordinal[base[c]];
          data[chunk * 2] = data[base[c] * 2]; data[chunk * 2 + 1] = 0;
#ifndef COPYNOREF
          if :: previous[chunk] != 0 -> owners[previous[chunk]]++ :: else fi;
#endif
          owners[chunk] = 0;
          end_generation(c, chunk, length[c]);
#ifdef NOREFNEXT
          owners[chunk] = 1
#endif
       :: else
       fi
    :: else ->
       if
       :: tip[c] == 0 || ordinal[tip[c]] < length[c] / 2 ->
          take_chunk(chunk);
          if
          :: chunk != 0 ->
             used_by[chunk] = OURS; owners[chunk] = 1;
             previous[chunk] = tip[c];
             ordinal[chunk] = length[c] / 2;
             data[chunk * 2] = 0; data[chunk * 2 + 1] = 0;
             tip[c] = chunk
          :: else
          fi
       :: else ->
          chunk = tip[c];
          do :: ordinal[chunk] > length[c] / 2 -> chunk = previous[chunk] :: else -> break od
       fi
    fi;
    sweep();
    check_rules();
#ifndef NORULES
    assert(chunk == 0 || owners[chunk] == 1);         /* written in place = exactly one owner */
#endif
    mine = generation[c]
  }
}

proctype Writer(byte me) {
  byte c, chunk, position, mine, count;
  do
  :: count < APPENDS ->
     count++;
     if :: c = 0 :: c = 1 fi;
     grant(c, chunk);
     /* A moment in which others can end the generation. */
     atomic {
       pin_context[me] = c; pin_generation[me] = mine;
       position = length[c];
       if
       :: chunk == 0 || generation[c] != mine || position / 2 != ordinal[chunk] -> goto over
       :: else
       fi
     }
     d_step {                                          /* from its pin on nobody can stop it */
       assert(used_by[chunk] == OURS);
       data[chunk * 2 + position % 2] = 10 * me + position
     }
     atomic {                                          /* publish */
       if
       :: generation[c] == mine && length[c] == position ->
          content[c * 4 + position] = 10 * me + position; length[c] = position + 1
       :: else
       fi;
over:
       pin_generation[me] = 0; pin_context[me] = 0;
       c = 0; chunk = 0; position = 0; mine = 0
     }
  :: else -> break
  od;
  working--
}

inline look() {
  i = 0;
  do :: i < tokens -> assert(data[chunks[i / 2] * 2 + i % 2] == values[i]); i++ :: else -> break od;
  i = 0
}

proctype Reader() {
  byte c, tokens, chunks[2], values[4];
  if :: c = 0 :: c = 1 fi;
  d_step {
    if
    :: tip[c] != NONE ->
       pin_context[0] = c; pin_generation[0] = generation[c];
       tokens = length[c];
       x = tip[c];
       do
       :: x != 0 -> if :: ordinal[x] < 2 -> chunks[ordinal[x]] = x :: else fi; x = previous[x]
       :: else -> break
       od;
       i = 0;
       do :: i < tokens -> values[i] = content[c * 4 + i]; i++ :: else -> break od;
       look()                                          /* what it has to be, */
    :: else
    fi
  }
  d_step { look(); pin_generation[0] = 0; pin_context[0] = 0 }   /* and it stays while pinned */
  d_step {
    c = 0; tokens = 0; chunks[0] = 0; chunks[1] = 0;
    values[0] = 0; values[1] = 0; values[2] = 0; values[3] = 0;
    working--
  }
}

inline cut() { d_step { ancestor(tip[c], to, next); end_generation(c, next, to); sweep(); check_rules() } }

proctype Daemon() {
  byte c, next, to, count;
  do
  :: count < OPERATIONS ->
     count++;
     if :: c = 0 :: c = 1 fi;
     if
     :: tip[c] != NONE && length[c] > 0 -> to = length[c] - 1; cut()
     :: tip[c] != NONE && length[c] > 1 -> to = length[c] - 2; cut()
     :: tip[c] != NONE -> to = length[c]; cut()                                  /* take-over, close */
     :: tip[c] != NONE -> d_step { end_generation(c, NONE, 0); sweep(); check_rules() }   /* retire */
     :: d_step { sweep(); check_rules() }
     fi;
     c = 0; next = 0; to = 0
  :: else -> break
  od;
  working == 0;
  /* Nobody pins any more: nothing is kept, and each context holds what it has published. */
  d_step {
    sweep();
    check_rules();
    do :: next < KEPT_MAX -> assert(kept_tip[next] == 0); next++ :: else -> break od;
    do
    :: c < 2 ->
       to = 0;
       do
       :: tip[c] != NONE && to < length[c] ->
          ancestor(tip[c], to + 1, next);
          assert(data[next * 2 + to % 2] == content[c * 4 + to]);
          to++
       :: else -> break
       od;
       c++
    :: else -> break
    od
  }
}

init {
  atomic {
    /* Context 0: three tokens in chunks 1 and 2. Context 1 began in chunk 1, or there is none. */
    used_by[1] = OURS; owners[1] = 1; data[2] = 30; data[3] = 31;
    used_by[2] = OURS; owners[2] = 1; previous[2] = 1; ordinal[2] = 1; data[4] = 32;
    generation[0] = 1; tip[0] = 2; length[0] = 3;
    content[0] = 30; content[1] = 31; content[2] = 32;
    generation[1] = 1;
    if
    :: tip[1] = NONE
    :: tip[1] = 1; base[1] = 1; owners[1] = 2; length[1] = 1; content[4] = 30
    :: tip[1] = 1; base[1] = 1; owners[1] = 2; length[1] = 2; content[4] = 30; content[5] = 31
    fi;
    check_rules();
    run Reader(); run Writer(1); run Writer(2); run Daemon()
  }
}
