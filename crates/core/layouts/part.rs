//! Parts of a matrix of scales, e.g. its groups of rows. Each part is laid out separately in the buffer.

use std::ops::Range;

use super::table::Tile;

/// A rectangle of the matrix that is laid out separately: one group of rows or columns, or the whole matrix.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub tile: Tile,
    pub rows: Range<usize>,
    /// Range of bytes that the part takes in each row of the matrix.
    pub bytes: Range<usize>,
    /// Offset of the part in the buffer, in bytes.
    pub at: usize,
}

impl Part {
    /// Number of rows of a tile.
    pub fn height(&self) -> usize {
        self.tile.height(self.rows.len())
    }

    /// True if a tile holds all rows of the part, and the part has more than 64 rows. Neighbouring words of a row are then far
    /// apart in the buffer.
    pub fn is_tall(&self) -> bool {
        self.tile == Tile::All && self.height() > 64
    }

    /// Number of tiles from left to right; a tile takes 4 bytes of each row.
    pub fn across(&self) -> usize {
        self.bytes.len().div_ceil(4)
    }

    /// Number of bytes of the part in the buffer.
    pub fn len(&self) -> usize {
        self.rows.len().next_multiple_of(self.height()) * self.across() * 4
    }

    /// Returns the strip of `rows` rows from row `top` of the part on; the last strip may have fewer rows.
    pub fn strip(&self, top: usize, rows: usize) -> Self {
        let len = self.rows.len();
        let start = self.rows.start;
        Self {
            rows: start + top.min(len)..start + top.saturating_add(rows).min(len),
            at: self.at + top.min(len) * self.across() * 4,
            ..self.clone()
        }
    }

    /// Returns the offset in the buffer of byte `b` of row `r` of the matrix. The byte must be in the part.
    pub fn offset(&self, r: usize, b: usize) -> usize {
        let (r, b) = (r - self.rows.start, b - self.bytes.start);
        let height = self.height();
        let tile = r / height * self.across() + b / 4;
        self.at + (tile * height + self.tile.word(r % height)) * 4 + b % 4
    }
}
