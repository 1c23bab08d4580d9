//! Peers of kernels.

use ulplab::commands::kernels::bench::case_pattern;

#[test]
fn peers_are_those_of_the_cells() {
    assert_eq!(case_pattern("rope.*/**/bf16.**"), "rope/bf16.*");
    assert_eq!(case_pattern("delta_decode.vk**/**/**256"), "delta_decode/*256");
}
