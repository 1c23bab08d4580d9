//! Delayed builds of kernels: primitives that synchronise sleep before and after (`kernels/lib/delays.cuh`), so that races show.
//!
//! A right kernel gives the same bytes however long its warps sleep. The host sets a [`Pattern`] before each run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::path::Path;

use super::header::Source;

/// Options with which the compiler builds the delays into a kernel.
pub const OPTIONS: [&str; 2] = ["-DULPLAB_DELAYS", "--pre-include=lib/delays.cuh"];
/// The constant of a module that holds the pattern.
pub const SYMBOL: &CStr = c"ulplab_delays";
/// Places of the table of reached sites, four bytes each.
pub const SITES: usize = 1 << 16;

/// Pattern of the delays of a run, as in `DelayPattern` of `kernels/lib/delays.cuh`. A call sleeps if a hash of its warp, block,
/// clock and site has none of the bits in `mask`. The hash covers what has a factor other than 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    seed: u32,
    of_warp: u32,
    of_block: u32,
    of_call: u32,
    of_site: u32,
    mask: u32,
    /// Longest sleep in ns.
    most: u32,
    /// The site that sleeps; 0 for all.
    only: u32,
    /// Address of the table of reached sites on the device; 0 for none.
    reached: u64,
}

impl Pattern {
    /// Returns the pattern of a seed. Seed 0 delays nothing. The other seeds take turns at four kinds: calls at random; the same
    /// warps at the same sites always; whole blocks at some sites; the same warps at all sites.
    pub fn of(seed: u32) -> Self {
        const WARP: u32 = 0x9e37_79b1;
        const BLOCK: u32 = 0x85eb_ca77;
        const CALL: u32 = 0xc2b2_ae3d;
        const SITE: u32 = 0x27d4_eb2f;
        let (factors, mask, most) = match (seed, seed % 4) {
            (0, _) => return Self::default(),
            (_, 1) => ([WARP, BLOCK, CALL, SITE], 3, 4_000),
            (_, 2) => ([WARP, BLOCK, 0, SITE], 7, 8_000),
            (_, 3) => ([0, BLOCK, 0, SITE], 3, 8_000),
            _ => ([WARP, 0, 0, 0], 3, 2_000),
        };
        let [of_warp, of_block, of_call, of_site] = factors;
        let seed = seed.wrapping_mul(0x1656_67b1);
        Self {
            seed,
            of_warp,
            of_block,
            of_call,
            of_site,
            mask,
            most,
            only: 0,
            reached: 0,
        }
    }

    /// Returns the pattern of a seed in which only one site sleeps, in half of its calls.
    pub fn at(site: u32, seed: u32) -> Self {
        Self {
            only: site,
            mask: 1,
            most: 8_000,
            of_site: 0,
            ..Self::of(1 + 4 * seed)
        }
    }

    /// Returns the same pattern, under which a run writes the sites that it reaches to the table at this address on the device.
    pub fn recording(self, reached: u64) -> Self {
        Self { reached, ..self }
    }

    /// Returns the bytes of the pattern on the device.
    pub fn bytes(&self) -> Vec<u8> {
        let Self {
            seed,
            of_warp,
            of_block,
            of_call,
            of_site,
            mask,
            most,
            only,
            reached,
        } = *self;
        let words = [seed, of_warp, of_block, of_call, of_site, mask, most, only];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(reached.to_le_bytes());
        bytes
    }
}

/// Returns the number of a site, which `delay_site` of `kernels/lib/delays.cuh` computes from the compiler's name of the file.
pub fn site(path: &str, line: u32) -> u32 {
    let mut parts = path.rsplitn(3, '/');
    let (name, folder) = (parts.next().unwrap_or_default(), parts.next());
    let named = folder.map_or_else(|| name.to_string(), |folder| format!("{folder}/{name}"));
    let hash = named.bytes().fold(2_166_136_261u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    hash << 12 | line & 0xfff
}

/// Names of the sites of a kernel file and its includes: `FILE:LINE`, by the number of the site.
pub fn names(source: &Source) -> BTreeMap<u32, String> {
    let folder = source.path.parent().unwrap_or(Path::new("."));
    let includes = source.includes.iter();
    let includes = includes.map(|(name, text)| (folder.join(name).display().to_string(), text));
    let texts = std::iter::once((source.path.display().to_string(), &source.text)).chain(includes);
    let lines = texts.flat_map(|(path, text)| {
        let count = text.lines().count() as u32;
        (1..=count).map(move |line| (site(&path, line), format!("{path}:{line}")))
    });
    lines.collect()
}

/// Returns the sites in a table that a run filled.
pub fn reached(table: &[u8]) -> BTreeSet<u32> {
    let words = table
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    words.filter(|word| *word != 0).collect()
}
