//! Counters in Redis: real servers in each topology, what is kept in them, and what happens without them.

mod harness;
