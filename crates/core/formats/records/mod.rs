//! KV-cache records: byte layout of the entry of one token, and of the pages that hold the entries.

mod codec;
mod table;

use super::element::Element;
use super::scale::Scale;

pub use table::RECORDS;

/// Number of tokens in a page.
pub const PAGE: usize = 64;

/// Number of channels of the longest vector that a record may hold.
const MAX_DIM: usize = 512;

/// Range of bytes of one token in a region of a page. A region has one row of bytes per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`KvRecord::regions`].
    pub region: usize,
    /// First byte within the row.
    pub offset: usize,
    /// Number of bytes in the range.
    pub bytes: usize,
}

/// Consecutive channels that are stored in the same way.
#[derive(Debug)]
pub struct Segment {
    /// Name, e.g. `nope` for the channels without position encoding.
    pub name: &'static str,
    /// Index of the first channel, and the index after the last channel.
    pub channels: (usize, usize),
    /// The type of the codes.
    pub element: &'static Element,
    /// Place (range of bytes) of the codes.
    pub codes: Place,
    /// Block size, type and place (range of bytes) of the scales; `None` for unscaled codes. The last block may be short.
    pub scales: Option<(usize, Scale, Place)>,
}

/// One token's entry in a KV cache.
///
/// A page of `P` tokens consists of consecutive regions; a region has `P` rows, one per token. The page is padded with zeros to a
/// multiple of `align` bytes. Numbers of several bytes are little-endian.
#[derive(Debug)]
pub struct KvRecord {
    /// Name, e.g. `v4_fp8`.
    pub name: &'static str,
    /// One line that describes the layout of a token.
    pub doc: &'static str,
    /// Library that defines the layout.
    pub source: &'static str,
    /// Number of channels of a KV vector.
    pub dim: usize,
    /// Number of bytes of a token in all regions together, without the padding of the page.
    pub bytes: usize,
    /// Number of bytes of a token's row in each region.
    pub regions: &'static [usize],
    /// Segments in the order of their channels.
    pub segments: &'static [Segment],
    /// Places (ranges of bytes) that are always zero.
    pub padding: &'static [Place],
    /// Alignment of a page in bytes.
    pub align: usize,
}

impl KvRecord {
    /// Returns the number of bytes from the start of a page of `page` tokens to the start of the next page.
    pub const fn page_stride(&self, page: usize) -> usize {
        (self.bytes * page).next_multiple_of(self.align)
    }

    /// Returns the byte offset of `place` in a page of `page` tokens, for the token in slot `slot`.
    pub const fn offset(&self, place: Place, slot: usize, page: usize) -> usize {
        let mut start = 0;
        let mut region = 0;
        while region < place.region {
            start += self.regions[region] * page;
            region += 1;
        }
        start + self.regions[place.region] * slot + place.offset
    }

    /// Returns the name and the place (range of bytes) of each field of a record: codes, scales, padding.
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

    /// True if the fields use every channel and byte of a token exactly once, and each field has the size that its channels need.
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

    /// Marks the bytes of a place as used, and adds their number to `total`. Returns false if a byte is already used, or if the
    /// place exceeds the row of its region.
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
