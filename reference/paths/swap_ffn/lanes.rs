//! Map of a core: a byte that stores the order of the core's four banks (vectors in memory). A core has one of the vectors into
//! which a token is expanded. Lane i (bits 2i and 2i+1) of the map holds the number of a bank.

use serde::Deserialize;

/// Number of banks of a core, and of lanes of a map.
pub const BANKS: usize = 4;

/// Identity map: lane i holds bank i.
pub const IDENTITY: u8 = 0xE4;

/// Update of the map after the x of a core is exchanged with the bank in lane s. The first two rules move that bank to lane 0 and
/// keep the map a permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneRule {
    /// Swaps lanes 0 and s.
    Transposition,
    /// Moves the bank of lane s to lane 0, and the banks of lanes 0 to s−1 up by one: lanes are ordered by last use.
    MoveToFront,
    /// Copies lane s to lane 0, as the definition literally says: the bank that was in lane 0 is lost from the map.
    Literal,
}

/// Returns the bank in each lane.
pub fn decode(map: u8) -> [u8; BANKS] {
    [0, 2, 4, 6].map(|bit| map >> bit & 3)
}

/// Packs the bank of each lane into a map. Only the lowest two bits of a bank are used.
pub fn pack(lanes: [u8; BANKS]) -> u8 {
    lanes.iter().rev().fold(0, |map, lane| map << 2 | lane & 3)
}

/// Returns true if each of the four banks is in one lane of the map.
pub fn is_permutation(map: u8) -> bool {
    decode(map).iter().fold(0, |seen, lane| seen | 1 << lane) == 0b1111
}

impl LaneRule {
    /// Returns the map after an exchange with the bank in lane `selected`, which must be below [`BANKS`]. The rule also applies
    /// to maps that are not permutations.
    pub fn update(self, map: u8, selected: usize) -> u8 {
        let mut lanes = decode(map);
        match self {
            Self::Transposition => lanes.swap(0, selected),
            Self::MoveToFront => lanes[..=selected].rotate_right(1),
            Self::Literal => lanes[0] = lanes[selected],
        }
        pack(lanes)
    }
}
