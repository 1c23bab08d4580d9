//! Maps: where the four banks of a core are. Lane i, bits 2i and 2i+1 of a byte, holds the number of a bank.

use serde::Deserialize;

/// Banks of a core, and lanes of a map.
pub const BANKS: usize = 4;

/// Lane i holds bank i.
pub const IDENTITY: u8 = 0xE4;

/// Change of the map by an exchange with the bank in lane s. The first two put that bank in lane 0 and keep a permutation one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneRule {
    /// Lanes 0 and s change places.
    Transposition,
    /// Lanes 0 to s−1 move up by one: lanes are in the order of their last use.
    MoveToFront,
    /// Lane 0 becomes a copy of lane s, and the bank it held is in no lane any more: the definition taken by the letter.
    Literal,
}

/// The banks in the lanes.
pub fn decode(map: u8) -> [u8; BANKS] {
    [0, 2, 4, 6].map(|bit| map >> bit & 3)
}

/// Packs the bank of each lane into a map. Only the lowest two bits of a bank count.
pub fn pack(lanes: [u8; BANKS]) -> u8 {
    lanes.iter().rev().fold(0, |map, lane| map << 2 | lane & 3)
}

/// Returns whether every bank is in a lane.
pub fn is_permutation(map: u8) -> bool {
    decode(map).iter().fold(0, |seen, lane| seen | 1 << lane) == 0b1111
}

impl LaneRule {
    /// Returns the map after an exchange with the bank in lane `selected`, below [`BANKS`]. The same rule applies to maps that are
    /// not permutations.
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
