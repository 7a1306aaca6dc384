//! The state machine without I/O: bytes in, calls and bytes out.

mod attacks;
mod differential;
mod flow;
mod peer;
mod requests;
mod turns;
