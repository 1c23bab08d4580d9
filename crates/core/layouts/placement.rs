//! Computes the offset of each scale of a matrix in the GEMM's buffer, from the layout and the shape of the matrix.

use super::part::Part;
use super::table::{Groups, Layout};
use super::words::{Pack, Unpack, dispatch};

/// Offsets of the scales of one matrix in a buffer.
#[derive(Clone, Debug)]
pub struct Placement {
    name: &'static str,
    /// Number of matrices with the same layout, one after another in the buffer. The other fields describe one matrix.
    experts: usize,
    rows: usize,
    /// Number of bytes of a row of the matrix.
    stride: usize,
    /// Number of bytes of one scale.
    scale: usize,
    starts: Vec<usize>,
    /// Parts of the matrix. They fill the buffer up to byte `used`.
    parts: Vec<Part>,
    used: usize,
    len: usize,
    /// Number of rows of a strip, a multiple of the tile's height. A strip is converted in all parts before the next strip.
    strip: usize,
}

impl Layout {
    /// Computes the placement of a matrix of scales.
    ///
    /// `shape` is `[rows, cols]`. For a layout without groups, it may be `[experts, rows, cols]`: the buffer then holds the
    /// scales of one expert after another. `ends[g]` is the index after the last row or column of group `g`; a group begins where
    /// the previous group ends. Groups may be empty, and rows or columns after the last group are not laid out. Without groups
    /// `ends` is empty.
    pub fn place(&self, shape: &[usize], ends: &[usize]) -> Result<Placement, String> {
        let wrong = |message: String| format!("{}: {message}", self.name);
        let (experts, rows, cols) = match (shape, self.groups) {
            (&[rows, cols], _) => (1, rows, cols),
            (&[experts, rows, cols], Groups::None) => (experts, rows, cols),
            (_, Groups::None) => {
                return Err(wrong(format!(
                    "shape {shape:?} is neither [rows, cols] nor [experts, rows, cols]"
                )));
            }
            _ => return Err(wrong(format!("shape {shape:?} is not [rows, cols]"))),
        };
        let limit = match self.groups {
            Groups::None => 0,
            Groups::Rows => rows,
            Groups::Cols => cols,
        };
        check_ends(self.groups, ends, limit).map_err(wrong)?;
        // Computes an upper bound of the buffer size, for any layout. If the bound does not overflow, the sums below do not
        // overflow either.
        let padded = |n: usize, by: usize| ends.len().checked_add(1)?.checked_mul(by)?.checked_add(n);
        padded(rows, 128)
            .and_then(|rows| rows.checked_mul(experts.max(1)))
            .and_then(|rows| rows.checked_mul(padded(cols.checked_mul(self.scale)?, 4)?))
            .filter(|bytes| *bytes <= isize::MAX as usize)
            .ok_or_else(|| wrong(format!("a matrix of shape {shape:?} is too large for memory")))?;

        let stride = cols * self.scale;
        let tile = self.tile;
        // In the buffer, each group begins at a multiple of `unit` rows or columns, and one row or column takes `lead` bytes.
        let (unit, lead) = match self.groups {
            Groups::None => (tile.height(rows), stride.next_multiple_of(4)),
            Groups::Rows => (128, stride.next_multiple_of(4)),
            Groups::Cols => (4, rows.next_multiple_of(128)),
        };
        let whole = [rows];
        let ends_of_parts = if self.groups == Groups::None { &whole[..] } else { ends };
        let (mut starts, mut parts) = (vec![0], Vec::new());
        let (mut begin, mut start) = (0, 0);
        for end in ends_of_parts {
            let group = begin..*end;
            begin = *end;
            let at = start * lead;
            start += group.len().next_multiple_of(unit);
            starts.push(start);
            let (rows, bytes) = match self.groups {
                Groups::Cols => (0..rows, group),
                Groups::None | Groups::Rows => (group, 0..stride),
            };
            parts.push(Part { tile, rows, bytes, at });
        }
        let used = start * lead;
        let len = match self.groups {
            Groups::None => used,
            Groups::Rows | Groups::Cols => (limit + unit * ends.len()) * lead,
        };
        if self.groups == Groups::None {
            starts.clear();
        }
        Ok(Placement {
            name: self.name,
            experts,
            rows,
            stride,
            scale: self.scale,
            starts,
            parts,
            used,
            len,
            strip: if self.groups == Groups::Cols { 128 } else { usize::MAX },
        })
    }
}

fn check_ends(groups: Groups, ends: &[usize], limit: usize) -> Result<(), String> {
    let what = match groups {
        Groups::None if ends.is_empty() => return Ok(()),
        Groups::None => return Err(format!("there are no groups, found {} ends", ends.len())),
        Groups::Rows => "row",
        Groups::Cols => "column",
    };
    if let Some(g) = (1..ends.len()).find(|g| ends[*g] < ends[g - 1]) {
        let (before, end) = (ends[g - 1], ends[g]);
        return Err(format!(
            "group {g} ends at {what} {end}, before its beginning at {before}"
        ));
    }
    match ends.last() {
        None => Err(format!("no ends of groups; one group ends at {what} {limit}")),
        Some(end) if *end > limit => Err(format!(
            "the last group ends at {what} {end}, after the last at {limit}"
        )),
        _ => Ok(()),
    }
}

impl Placement {
    /// Returns the size of the buffer in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.experts * self.len
    }

    /// Returns the size of the matrix in bytes.
    pub fn matrix_len(&self) -> usize {
        self.experts * self.rows * self.stride
    }

    /// Returns the start of each group and the end of the last group, as in torchao: numbers of rows or columns, including
    /// padding. The slice is empty if the layout has no groups.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Returns the offset of the first byte of the scale in row `r` and column `c` of the matrix; `None` outside the matrix or
    /// its groups. If the matrix has three dimensions, `r` counts the rows of all experts.
    pub fn offset(&self, r: usize, c: usize) -> Option<usize> {
        let b = c.checked_mul(self.scale)?;
        let expert = r.checked_div(self.rows).filter(|expert| *expert < self.experts)?;
        let r = r % self.rows;
        let holds = |part: &&Part| part.rows.contains(&r) && part.bytes.contains(&b);
        let part = self.parts.iter().find(holds)?;
        Some(expert * self.len + part.offset(r, b))
    }

    /// Writes the scales of a row-major matrix to a new buffer, in this layout.
    pub fn forward(&self, matrix: &[u8]) -> Result<Vec<u8>, String> {
        self.check("matrix", matrix.len(), self.matrix_len())?;
        let mut buffer = vec![0; self.len()];
        self.forward_into(matrix, &mut buffer)?;
        Ok(buffer)
    }

    /// Writes the scales of a row-major matrix to `buffer`, in this layout. Every byte is written; padding is 0.
    pub fn forward_into(&self, matrix: &[u8], buffer: &mut [u8]) -> Result<(), String> {
        self.check("matrix", matrix.len(), self.matrix_len())?;
        self.check("buffer", buffer.len(), self.len())?;
        let size = self.rows * self.stride;
        for (expert, buffer) in buffer.chunks_exact_mut(self.len.max(1)).enumerate() {
            for part in self.strips() {
                dispatch(Pack {
                    part: &part,
                    matrix: &matrix[expert * size..][..size],
                    stride: self.stride,
                    tiles: &mut buffer[part.at..][..part.len()],
                });
            }
            buffer[self.used..].fill(0);
        }
        Ok(())
    }

    /// Reads the scales in a buffer into a new row-major matrix. Scales outside all groups are 0.
    pub fn inverse(&self, buffer: &[u8]) -> Result<Vec<u8>, String> {
        self.check("buffer", buffer.len(), self.len())?;
        let mut matrix = vec![0; self.matrix_len()];
        self.inverse_into(buffer, &mut matrix)?;
        Ok(matrix)
    }

    /// Reads the scales in a buffer into the row-major `matrix`. Scales outside all groups are unchanged.
    pub fn inverse_into(&self, buffer: &[u8], matrix: &mut [u8]) -> Result<(), String> {
        self.check("buffer", buffer.len(), self.len())?;
        self.check("matrix", matrix.len(), self.matrix_len())?;
        let size = self.rows * self.stride;
        for (expert, buffer) in buffer.chunks_exact(self.len.max(1)).enumerate() {
            for part in self.strips() {
                dispatch(Unpack {
                    part: &part,
                    tiles: &buffer[part.at..][..part.len()],
                    matrix: &mut matrix[expert * size..][..size],
                    stride: self.stride,
                });
            }
        }
        Ok(())
    }

    /// Returns all parts, cut into strips of rows. Groups of columns share the rows of the matrix; with strips, the matrix is
    /// read once, row by row, instead of once per group.
    fn strips(&self) -> impl Iterator<Item = Part> {
        let parts = || self.parts.iter().filter(|part| !part.bytes.is_empty());
        let tallest = parts().map(|part| part.rows.len()).max().unwrap_or(0);
        let tops = (0..tallest).step_by(self.strip);
        tops.flat_map(move |top| parts().map(move |part| part.strip(top, self.strip)))
    }

    fn check(&self, what: &str, found: usize, expected: usize) -> Result<(), String> {
        let name = self.name;
        let wrong = || format!("{name}: the {what} has {found} bytes, expected {expected}");
        if found == expected { Ok(()) } else { Err(wrong()) }
    }
}
