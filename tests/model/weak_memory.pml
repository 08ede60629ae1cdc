/* Pin against recycle, publish against end of a generation, and reuse of a slot, on memory that is
   not sequentially consistent. Each thread's stores wait in a buffer of its own; it sees them itself,
   the others only once they were flushed, at any later time. Loads happen in program order.

   Two machines:
     (none)  x86, TSO: a buffer is flushed in order. A sequentially consistent store is an exchange; it
             and every read-modify-write wait for an empty buffer and go to memory at once.
     WEAK    what C++ promises of stores, and AArch64 makes use of. Stores to different words are flushed in
             any order, but a release store (or stronger) after all stores before it. NO store and no
             read-modify-write waits: they only join the buffer. Only a sequentially consistent load
             waits, until the sequentially consistent stores of its own thread were flushed. A
             read-modify-write stays one step: until it was flushed nobody else may change its word.

   One chunk of two tokens; the first is published, a writer has a grant for the second. The daemon
   retires the context, gives the chunk to ANOTHER session in the same slot, and looks at its bytes.

     steps            code
     raise_mark, pin  PinWords::claim (client/library/pin_words.hpp), claim_pin (shared/words.hpp)
     confirm          confirm_pin (shared/words.hpp), in Attachment::look (client/library/resolve.cpp)
                      and HeldContext::try_append (client/library/held_context.cpp)
     publish, unpin   shared/words.hpp; Writer::publish, Writer::unpin (client/library/writer.cpp)
     retire           Shard::retire, end_generation: exchange_length, then StoreGate::store_head
     reopen           Shard::open: id, exchange_length, store_head; before the scan (supersede) or after it
     scan             Shard::sweep, PageTable::scan_pins: the mark, then the pin words below it

   What memory orders there are stand in the code; each flag weakens one. The check then has to fail:
     PIN_BUFFERED      the pin is stored with release                                    either machine
     BOTH_BUFFERED     the head with release, the length not exchanged but stored        either machine
     LATE_READ         the reader unpins before its last look (a load after the unpin)   either machine
     LATE_MARK         the high-water mark is raised after the claim was confirmed       either machine
     HEAD_BUFFERED     the head is stored with release                                   WEAK
     HEAD_ACQUIRE      confirm_pin loads the head with acquire                           WEAK
     SCAN_ACQUIRE      the daemon loads marks and pin words with acquire                 WEAK
     UNPIN_RELAXED     the unpin passes the writer's stores to the chunk                 WEAK
     PUBLISH_RELAXED   the length passes the writer's stores to the chunk                WEAK
     ID_RELAXED        the id of the next session passes the head that frees the slot    WEAK

   On x86 the last six are no mistakes, and the check says so: no test that runs there can see them.
   HEAD_BUFFERED is one, because the exchange of the length stands between the head of the old
   generation and the scan, empties the buffer before it, and confirm_pin looks at the length's
   generation as well: whoever pins too late for the scan sees a length of the next generation. Take
   both away (BOTH_BUFFERED) and the claim is lost on x86, too. The length's orders are acquire and
   release only, so in C++ (and with a load- and store-exclusive pair on AArch64) they carry nothing
   of this, and the sequentially consistent head is what the argument in shared/words.hpp rests on.

   Not here: loads that pass loads. Each load of the protocol is acquire or stronger, so nothing after
   it passes it; plain loads of a chunk follow confirm_pin's and precede the unpin's release. */

/* Words. */
#define HEAD 0      /* 2 * generation + (live) */
#define LENGTH 1    /* 4 * generation + tokens */
#define PIN_R 2     /* generation, 0 claims nothing */
#define PIN_W 3
#define MARK_R 4
#define ID 5
#define DATA 6      /* two tokens */
#define WORDS 8

/* Whose bytes, whose id. */
#define OURS 1
#define ANOTHER 2

/* Threads. */
#define R 0
#define W 1
#define D 2
#define BUFFER_MAX 12

#define RELAXED 0
#define RELEASE 1
#define SEQ_CST 2

typedef Buffer { byte size; byte word[BUFFER_MAX]; byte value[BUFFER_MAX]; byte order[BUFFER_MAX]; byte seq_cst_count; byte lengths }
Buffer buffer[3];
byte memory[WORDS];
byte told = 0;              /* the length that the writer was told it has published */
hidden byte k;

#ifdef WEAK
#define SEQ_CST_STORE_MAY_GO(t) true
#define SEQ_CST_LOAD_MAY_GO(t) (buffer[t].seq_cst_count == 0)
#define LENGTH_MAY_CHANGE(t) (buffer[(t + 1) % 3].lengths == 0 && buffer[(t + 2) % 3].lengths == 0)
#else
#define SEQ_CST_STORE_MAY_GO(t) (buffer[t].size == 0)
#define SEQ_CST_LOAD_MAY_GO(t) true
#define LENGTH_MAY_CHANGE(t) (buffer[t].size == 0)
#endif

inline see(t, at, result) {
  result = memory[at];
  k = 0;
  do
  :: k < buffer[t].size -> if :: buffer[t].word[k] == at -> result = buffer[t].value[k] :: else fi; k++
  :: else -> break
  od;
  k = 0
}
inline put(t, at, next, how) {
  assert(buffer[t].size < BUFFER_MAX);
  buffer[t].word[buffer[t].size] = at;
  buffer[t].value[buffer[t].size] = next;
  buffer[t].order[buffer[t].size] = how;
  buffer[t].size++;
  if :: how == SEQ_CST -> buffer[t].seq_cst_count++ :: else fi;
  if :: at == LENGTH -> buffer[t].lengths++ :: else fi
}

/* Acquire and plain loads: program order is all they need here. */
inline load(t, at, result) { d_step { see(t, at, result) } }
inline load_seq_cst(t, at, result) { atomic { SEQ_CST_LOAD_MAY_GO(t) -> see(t, at, result) } }
inline store(t, at, next, how) { d_step { put(t, at, next, how) } }
#ifdef WEAK
inline store_seq_cst(t, at, next) { d_step { put(t, at, next, SEQ_CST) } }
#define change_length(t, next, how) put(t, LENGTH, next, how)
#else
inline store_seq_cst(t, at, next) { atomic { buffer[t].size == 0 -> memory[at] = next } }
#define change_length(t, next, how) memory[LENGTH] = next
#endif

/* Flushes one store of some thread: the oldest one, or in WEAK any that nothing holds back. */
inline flush(t) {
  atomic {
    buffer[t].size > 0;
    i = 0;
#ifdef WEAK
    do :: i + 1 < buffer[t].size -> i++ :: break od;
#endif
    may_go = (i == 0 || buffer[t].order[i] == RELAXED);
    k = 0;
    do
    :: k < i -> may_go = may_go && buffer[t].word[k] != buffer[t].word[i]; k++
    :: else -> break
    od;
    k = 0;
    if
    :: may_go ->
       memory[buffer[t].word[i]] = buffer[t].value[i];
       if :: buffer[t].order[i] == SEQ_CST -> buffer[t].seq_cst_count-- :: else fi;
       if :: buffer[t].word[i] == LENGTH -> buffer[t].lengths-- :: else fi;
       do
       :: i + 1 < buffer[t].size ->
          buffer[t].word[i] = buffer[t].word[i + 1];
          buffer[t].value[i] = buffer[t].value[i + 1];
          buffer[t].order[i] = buffer[t].order[i + 1];
          i++
       :: else -> break
       od;
       buffer[t].size--;
       buffer[t].word[buffer[t].size] = 0;
       buffer[t].value[buffer[t].size] = 0;
       buffer[t].order[buffer[t].size] = 0
    :: else
    fi;
    i = 0;
    may_go = 0
  }
}

proctype Buffers() {
  byte i;
  bit may_go;
end:
  do :: flush(R) :: flush(W) :: flush(D) od
}

#ifdef PIN_BUFFERED
#define claim_pin(t, pin, generation) store(t, pin, generation, RELEASE)
#else
#define claim_pin(t, pin, generation) store_seq_cst(t, pin, generation)
#endif
#ifdef UNPIN_RELAXED
#define unpin(t, pin) store(t, pin, 0, RELAXED)
#else
#define unpin(t, pin) store(t, pin, 0, RELEASE)
#endif
#ifdef HEAD_ACQUIRE
#define load_head(t, result) load(t, HEAD, result)
#else
#define load_head(t, result) load_seq_cst(t, HEAD, result)
#endif
#if defined(HEAD_BUFFERED) || defined(BOTH_BUFFERED)
#define store_head(next) store(D, HEAD, next, RELEASE)
#else
#define store_head(next) store_seq_cst(D, HEAD, next)
#endif
#ifdef SCAN_ACQUIRE
#define load_in_scan(pin, result) load(D, pin, result)
#else
#define load_in_scan(pin, result) load_seq_cst(D, pin, result)
#endif
#ifdef PUBLISH_RELAXED
#define PUBLISH RELAXED
#else
#define PUBLISH RELEASE
#endif
#ifdef ID_RELAXED
#define STORE_ID RELAXED
#else
#define STORE_ID RELEASE
#endif

proctype Reader() {
  byte head, id, length, seen, wanted, position;
  if :: wanted = OURS :: wanted = ANOTHER fi;
  load_seq_cst(R, HEAD, head);
  if :: head % 2 == 0 -> goto out :: else fi;
  load(R, ID, id);
  if :: id != wanted -> goto out :: else fi;
#ifndef LATE_MARK
  store_seq_cst(R, MARK_R, 1);
#endif
  claim_pin(R, PIN_R, head / 2);
  load(R, LENGTH, length);
  load_head(R, seen);
  if :: seen != head || length / 4 != head / 2 -> unpin(R, PIN_R); goto out :: else fi;
#ifdef LATE_MARK
  store_seq_cst(R, MARK_R, 1);
#endif
  length = length % 4;
  do
  :: position < length ->
     load(R, DATA + position, seen);
     assert(seen == wanted);                                     /* its own bytes, */
     position++
  :: else -> break
  od;
#ifdef LATE_READ
  unpin(R, PIN_R);
#endif
  position = 0;
  do
  :: position < length -> load(R, DATA + position, seen); assert(seen == wanted); position++
  :: else -> break                                               /* and they stay while pinned */
  od;
#ifndef LATE_READ
  unpin(R, PIN_R);
#endif
out:
  atomic { head = 0; id = 0; length = 0; seen = 0; wanted = 0; position = 0 }
}

/* Holds the lease of generation 1. Its mark was raised by an earlier claim. */
proctype Writer() {
  byte length, seen;
  claim_pin(W, PIN_W, 1);
  load(W, LENGTH, length);
  load_head(W, seen);
  if :: seen / 2 != 1 || length / 4 != 1 -> goto out :: else fi;
  store(W, DATA + 1, OURS, RELAXED);            /* a plain store nobody can fence off */
  atomic {                                      /* publish: compare and swap */
    LENGTH_MAY_CHANGE(W);
    see(W, LENGTH, seen);
    if :: seen == length -> change_length(W, length + 1, PUBLISH); told = 2 :: else fi
  }
out:
  unpin(W, PIN_W);
  d_step { length = 0; seen = 0 }
}

/* Another session in the slot, empty yet. */
inline reopen() {
  store(D, ID, ANOTHER, STORE_ID);
  atomic { LENGTH_MAY_CHANGE(D); change_length(D, 4 * 3, RELEASE) }
  store_head(2 * 3 + 1)
}

proctype Daemon() {
  byte length, seen;
  bit pinned, reopened;
  /* Retire. */
#ifdef BOTH_BUFFERED
  load(D, LENGTH, length);
  store(D, LENGTH, 4 * 2, RELEASE);
#else
  atomic {                                      /* exchange_length */
    LENGTH_MAY_CHANGE(D);
    see(D, LENGTH, length);
    assert(told == 0 || length % 4 == told);    /* nothing acknowledged is lost */
    change_length(D, 4 * 2, RELEASE)
  }
  load(D, DATA, seen);
  assert(seen == OURS);
  if :: length % 4 == 2 -> load(D, DATA + 1, seen); assert(seen == OURS) :: else fi;
#endif
  store_head(2 * 2);                            /* free */
  if :: reopen(); reopened = 1 :: skip fi;       /* in the same message (supersede) or a later one */
  /* Scan until nobody pins generation 1; each scan is a message. */
  do
  :: pinned = 0;
     load_in_scan(MARK_R, seen);
     if :: seen == 1 -> load_in_scan(PIN_R, seen); pinned = (seen == 1) :: else fi;
     load_in_scan(PIN_W, seen);
     if :: !pinned && seen != 1 -> break :: else fi
  od;
  /* The chunk is free. The other session gets it, writes and publishes. */
  if :: !reopened -> reopen() :: else fi;
  store(D, DATA, ANOTHER, RELAXED);
  store(D, DATA + 1, ANOTHER, RELAXED);
  atomic { LENGTH_MAY_CHANGE(D); change_length(D, 4 * 3 + 2, RELEASE) }
  load(D, DATA, seen);
  assert(seen == ANOTHER);
  load(D, DATA + 1, seen);
  assert(seen == ANOTHER);                      /* no late store landed in it */
  /* As anybody sees it, once all has been flushed. */
  (buffer[R].size == 0 && buffer[W].size == 0 && buffer[D].size == 0);
  assert(memory[DATA] == ANOTHER && memory[DATA + 1] == ANOTHER)
}

init {
  atomic {
    memory[HEAD] = 2 * 1 + 1; memory[LENGTH] = 4 * 1 + 1; memory[ID] = OURS; memory[DATA] = OURS;
    run Buffers(); run Reader(); run Writer(); run Daemon()
  }
}
