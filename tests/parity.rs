//! The parity diagnosis: real libraries' buffers get their library's name, planted faults their cause.

#[path = "parity/confusion.rs"]
mod confusion;
#[path = "parity/faults.rs"]
mod faults;
#[path = "parity/fixtures.rs"]
mod fixtures;
#[path = "parity/held_out.rs"]
mod held_out;
#[path = "parity/kinds.rs"]
mod kinds;
#[path = "parity/looked_at.rs"]
mod looked_at;
