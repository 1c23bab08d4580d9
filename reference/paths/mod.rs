//! One file per model path.
