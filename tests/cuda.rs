//! Kernels before they run: expressions, compositions, machine code, what is kept of it, and turns on a card.

#[path = "cuda/cache.rs"]
mod cache;
#[path = "cuda/cubin.rs"]
mod cubin;
#[path = "cuda/expr.rs"]
mod expr;
#[path = "cuda/graph.rs"]
mod graph;
#[path = "cuda/time.rs"]
mod time;
#[path = "cuda/turn.rs"]
mod turn;
