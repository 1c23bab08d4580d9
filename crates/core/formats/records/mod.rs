//! KV-cache records: the bytes of one token's entry, and of the pages they are laid out in.

mod codec;
mod table;

use super::element::Element;
use super::scale::Scale;

pub use table::RECORDS;

/// Tokens in a page.
pub const PAGE: usize = 64;

/// Channels of the longest vector a record may hold.
const MAX_DIM: usize = 512;

/// Bytes within a token's row of a region of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`KvRecord::regions`].
    pub region: usize,
    /// First byte within the row.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// Channels with the same storage.
#[derive(Debug)]
pub struct Segment {
    /// Name, e.g. `nope` for the channels without position.
    pub name: &'static str,
    /// First channel, and the one after the last.
    pub channels: (usize, usize),
    /// The type of the codes.
    pub element: &'static Element,
    /// The place of the codes.
    pub codes: Place,
    /// Block size, scale and where the scales are. The last block may be short.
    pub scales: Option<(usize, Scale, Place)>,
}

/// One token's entry in a KV cache.
///
/// A page of `P` tokens holds one region after the other; a region holds `P` rows, one per token. The page is padded
/// with zeros to a multiple of `align` bytes. Numbers of several bytes are little-endian.
#[derive(Debug)]
pub struct KvRecord {
    /// Name, e.g. `v4_fp8`.
    pub name: &'static str,
    /// One line with the layout of a token.
    pub doc: &'static str,
    /// Library that the layout comes from.
    pub source: &'static str,
    /// Channels of a KV vector.
    pub dim: usize,
    /// Bytes of a token, all regions together, without the padding of the page.
    pub bytes: usize,
    /// Bytes of a token's row in each region.
    pub regions: &'static [usize],
    /// The groups of channels, in the order of channels.
    pub segments: &'static [Segment],
    /// Bytes that are always zero.
    pub padding: &'static [Place],
    /// Alignment of a page in bytes.
    pub align: usize,
}

impl KvRecord {
    /// Bytes from one page to the next.
    pub const fn page_stride(&self, page: usize) -> usize {
        (self.bytes * page).next_multiple_of(self.align)
    }

    /// Offset, in its page, of a place of the token in the given slot.
    pub const fn offset(&self, place: Place, slot: usize, page: usize) -> usize {
        let mut start = 0;
        let mut region = 0;
        while region < place.region {
            start += self.regions[region] * page;
            region += 1;
        }
        start + self.regions[place.region] * slot + place.offset
    }

    /// Every stored thing with its name and place: codes, scales, padding.
    pub fn places(&self) -> Vec<(String, Place)> {
        let mut places = Vec::new();
        for segment in self.segments {
            places.push((format!("{} {}", segment.name, segment.element.name), segment.codes));
            if let Some((block, scale, place)) = segment.scales {
                places.push((format!("{} scales {} per {block}", segment.name, scale.kind()), place));
            }
        }
        places.extend(self.padding.iter().map(|place| ("zero".into(), *place)));
        places.sort_by_key(|(_, place)| (place.region, place.offset));
        places
    }

    /// True if every channel and every byte of a token is used exactly once, and each place has the size of what it
    /// holds.
    const fn is_sound(&self) -> bool {
        let (mut used, mut total, mut channel, mut i) = ([false; 2048], 0, 0, 0);
        while i < self.segments.len() {
            let segment = &self.segments[i];
            let ((first, end), codes) = (segment.channels, segment.codes);
            let fits = first == channel && codes.bytes * 8 == (end - first) * segment.element.bits as usize;
            if !fits || !self.mark(codes, &mut used, &mut total) {
                return false;
            }
            channel = end;
            if let Some((block, scale, place)) = &segment.scales {
                let fits = place.bytes == (end - first).div_ceil(*block) * scale.bytes();
                if !fits || !self.mark(*place, &mut used, &mut total) {
                    return false;
                }
            }
            i += 1;
        }
        i = 0;
        while i < self.padding.len() {
            if !self.mark(self.padding[i], &mut used, &mut total) {
                return false;
            }
            i += 1;
        }
        channel == self.dim && self.dim <= MAX_DIM && total == self.bytes
    }

    /// Marks the bytes of a place, and counts them; false if one is taken or outside its row.
    const fn mark(&self, place: Place, used: &mut [bool; 2048], total: &mut usize) -> bool {
        if place.offset + place.bytes > self.regions[place.region] {
            return false;
        }
        let start = self.offset(place, 0, 1);
        let mut i = 0;
        while i < place.bytes {
            if used[start + i] {
                return false;
            }
            used[start + i] = true;
            *total += 1;
            i += 1;
        }
        true
    }
}

const _: () = {
    let mut i = 0;
    while i < RECORDS.len() {
        assert!(RECORDS[i].is_sound(), "the fields of a record do not fill it");
        i += 1;
    }
};
