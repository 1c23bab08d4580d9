//! The commands of the program, one file or folder each.

pub mod audit;
pub mod baseline;
pub mod bench;
pub mod bisect;
pub mod calibrate;
pub mod compare;
pub mod decided;
pub mod describe;
pub mod diff;
pub mod dump;
pub mod front;
pub mod generate;
pub mod inspect;
pub mod integrate;
pub mod inventory;
pub mod judge;
pub mod kernels;
pub mod merge;
pub mod naming;
pub mod paired;
pub mod probe;
pub mod quantize;
pub mod status;
pub mod submit;
pub mod sweep;
pub mod verify;
