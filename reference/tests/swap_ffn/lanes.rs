//! Maps and exchanges, bit for bit, under decisions that are given.

use reference::paths::swap_ffn::{BANKS, Config, IDENTITY, LaneRule, decode, is_permutation, pack};
use reference::{Plain, Tensor};

use super::support::*;

const RULES: [LaneRule; 3] = [LaneRule::Transposition, LaneRule::MoveToFront, LaneRule::Literal];

fn permutations() -> Vec<u8> {
    (0..=255).filter(|&map| is_permutation(map)).collect()
}

/// The rules in other words: the first without branches on the byte, the second as a list that is taken from and put before.
fn updated(rule: LaneRule, map: u8, selected: usize) -> u8 {
    let shift = 2 * selected;
    let bank = map >> shift & 3;
    match rule {
        LaneRule::Transposition if selected > 0 => {
            let difference = (bank ^ map) & 3;
            map ^ difference ^ difference << shift
        }
        LaneRule::Transposition => map,
        LaneRule::MoveToFront => {
            let mut recent = decode(map).to_vec();
            let used = recent.remove(selected);
            recent.insert(0, used);
            recent.iter().enumerate().map(|(lane, bank)| bank << (2 * lane)).sum()
        }
        LaneRule::Literal => map & !3 | bank,
    }
}

#[test]
fn a_byte_is_four_lanes() {
    assert_eq!(decode(IDENTITY), [0, 1, 2, 3]);
    assert_eq!(permutations().len(), 24);
    for map in 0..=255 {
        assert_eq!(pack(decode(map)), map);
        let lanes = [0, 1, 2, 3].map(|lane| map / 4u8.pow(lane) % 4);
        assert_eq!(decode(map), lanes);
        let mut sorted = lanes;
        sorted.sort_unstable();
        assert_eq!(is_permutation(map), sorted == [0, 1, 2, 3], "{map:#x}");
    }
}

#[test]
fn rules_do_what_they_say_on_every_map() {
    for rule in RULES {
        for map in 0..=255 {
            for selected in 0..BANKS {
                let got = rule.update(map, selected);
                assert_eq!(got, updated(rule, map, selected), "{rule:?} {map:#x} {selected}");
                assert_eq!(decode(got)[0], decode(map)[selected], "what was used is in lane 0");
                if rule != LaneRule::Literal {
                    assert_eq!(is_permutation(got), is_permutation(map), "{rule:?} {map:#x} {selected}");
                }
            }
        }
    }
}

/// By the letter, a lane that is not 0 never changes, so the bank that lane 0 held is lost.
#[test]
fn the_literal_rule_loses_banks() {
    for map in permutations() {
        for selected in 0..BANKS {
            let got = decode(LaneRule::Literal.update(map, selected));
            assert_eq!(got[1..], decode(map)[1..]);
            assert_eq!(got.contains(&decode(map)[0]), selected == 0);
        }
    }
}

/// Every permutation, lane and gate in a core of its own, then every other map: what leaves x is in the bank the lane names,
/// what was there is x, and nothing else changed.
#[test]
fn exchanges_bit_for_bit() {
    let maps: Vec<u8> = permutations()
        .into_iter()
        .chain((0..=255).filter(|&map| !is_permutation(map)))
        .collect();
    let config = |lane_rule| Config {
        core_count: maps.len() * BANKS * 2,
        k_ffn: 0,
        lane_rule,
        ..SMALL
    };
    for rule in RULES {
        let config = config(rule);
        let model = model::<f32>(config);
        let mut state = state::<f32>(&config, 1);
        state.map = (0..config.core_count).map(|row| maps[row / 8]).collect();
        let before = state.clone();
        let mut x: Tensor<f32> = tensor("x", &[config.core_count, config.d_model]);
        let old = x.clone();
        let mut decided = Decided {
            gate: |row| (row % 2) as i32,
            bank: |row| (row / 2 % BANKS) as i32,
        };
        let decisions = model.event(&mut x, &mut state, 0, &mut decided).expect("an event");
        for row in 0..config.core_count {
            let (open, lane) = (row % 2 == 1, row / 2 % BANKS);
            assert_eq!(decisions.code(row), u8::from(open) * 4 + lane as u8);
            let used = usize::from(before.map[row] >> (2 * lane) & 3);
            let map = if open {
                updated(rule, before.map[row], lane)
            } else {
                before.map[row]
            };
            assert_eq!(state.map[row], map, "{rule:?} row {row}");
            for bank in 0..BANKS {
                let at = row * BANKS + bank;
                let want = if open && bank == used {
                    old.row(row)
                } else {
                    before.ram.row(at)
                };
                assert_eq!(state.ram.row(at), want, "{rule:?} row {row} bank {bank}");
            }
            let want = if open {
                before.ram.row(row * BANKS + used)
            } else {
                old.row(row)
            };
            assert_eq!(x.row(row), want, "{rule:?} row {row}");
        }
        // Exchanged again by the lane that holds the bank now, everything is where it was.
        let mut back = Decided {
            gate: |row| (row % 2) as i32,
            bank: |_| 0,
        };
        model.event(&mut x, &mut state, 0, &mut back).expect("an event");
        assert!(x == old && state.ram == before.ram, "{rule:?}");
    }
}

/// The path decides for itself and keeps permutations over many tokens.
#[test]
fn maps_stay_permutations() {
    for lane_rule in [LaneRule::Transposition, LaneRule::MoveToFront] {
        let config = Config { lane_rule, ..SMALL };
        let (model, mut state) = (model::<f32>(config), state::<f32>(&config, 2));
        for at in 0..20 {
            model
                .step(&token(&config, 2, at), &mut state, &mut Plain)
                .expect("a token");
        }
        assert!(state.map.iter().all(|&map| is_permutation(map)));
        assert!(state.map.iter().any(|&map| map != IDENTITY));
    }
}
