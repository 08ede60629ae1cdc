/* Reuse of a slot without a sequence lock: the generation in the head word is the version of session
   id and epoch, two words that change only between a head store that frees the slot and a head store
   that makes it live again. The daemon may die at any step. A reader that finds its own session must
   see its own bytes, and they must stay while it pins them.

   Each flag makes one wrong order, and the check then has to fail:
     BAD1  the id is overwritten before the head store that frees the slot
     BAD2  the head is made live before the id is complete */

byte id = 1, epoch = 1;                     /* identity, two words */
byte head_generation = 1, head_tip = 1;     /* the head word; tip 0 = free */
byte pin = 0;
byte kept_generation = 0, kept_tip = 0;     /* the kept head */
byte bytes_of[6];                           /* whose bytes are in a chunk: session * 10 + epoch */

#define SOMEBODY_ELSE 99

inline store_head(tip) { atomic { head_generation = head_generation + 1; head_tip = tip } }
inline store_identity(session) { id = session; epoch = 1 }

proctype Daemon() {
  byte session = 1;
  do
  :: session < 4 ->
     session++;
#ifdef BAD1
     id = session % 3;
#endif
     kept_generation = head_generation; kept_tip = head_tip;
     store_head(0);
     if :: pin != kept_generation -> bytes_of[kept_tip] = SOMEBODY_ELSE :: else fi;
#ifdef BAD2
     bytes_of[session] = (session % 3) * 10 + 1;
     store_head(session);
     store_identity(session % 3);
#else
     store_identity(session % 3);
     bytes_of[session] = (session % 3) * 10 + 1;
     store_head(session);
#endif
     if :: skip :: goto dead fi   /* a death at any other step is the same as never going on */
  :: else -> break
  od;
dead:
  skip
}

proctype Reader(byte wanted_id; byte wanted_epoch) {
  byte generation, tip, found_id, found_epoch, again, tries = 0;
  do
  :: tries < 4 ->
     tries++;
     atomic { generation = head_generation; tip = head_tip }
     if :: tip == 0 -> goto out :: else fi;
     found_id = id; found_epoch = epoch;
     if :: found_id != wanted_id || found_epoch != wanted_epoch -> goto next :: else fi;
     pin = generation;
     atomic { again = head_generation; tip = head_tip }
     if :: again != generation -> pin = 0; goto next :: else fi;
     assert(bytes_of[tip] == wanted_id * 10 + wanted_epoch);  /* its own bytes, */
     assert(bytes_of[tip] == wanted_id * 10 + wanted_epoch);  /* and they stay while pinned */
     pin = 0;
     goto out;
next:
     skip
  :: else -> break
  od;
out:
  skip
}

init {
  bytes_of[1] = 11;
  atomic {
    run Daemon();
    if :: run Reader(1, 1) :: run Reader(2, 1) :: run Reader(0, 1) fi
  }
}
