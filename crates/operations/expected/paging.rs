//! Storage of the keys and values of sequences: each sequence in its own row, packed one after the other, or in pages of a cache
//! with a block table.

use super::Call;

/// Locations of the keys of all sequences.
pub struct Keys<'a> {
    call: &'a Call,
    /// Number of tokens per page; without pages, number of tokens per sequence in the key tensor.
    page: usize,
    /// Number of pages of the cache.
    pages: usize,
    /// Block table, which lists the pages of every sequence, and its number of columns; `None` without pages.
    table: Option<(&'a [f64], usize)>,
    /// Start offset of each packed sequence, followed by the end of the last sequence; `None` if sequences are not packed.
    starts: Option<Vec<usize>>,
    /// Largest number of tokens that a sequence can have.
    room: usize,
    /// Number of tokens of each sequence.
    lengths: Vec<usize>,
}

/// Reads the start offset of each packed sequence, followed by the end of the last sequence; `None` if the call has no argument
/// `name`. The sequences have `tokens` tokens in total.
///
/// # Errors
/// Returns an error if the numbers do not start with 0, do not ascend, or do not end with the number of tokens.
pub fn starts(call: &Call, name: &str, tokens: usize) -> Result<Option<Vec<usize>>, String> {
    let Some(given) = call.optional(name) else {
        return Ok(None);
    };
    let wrong = || {
        let operation = call.operation().name;
        format!(
            "{operation}: '{name}' is {:?}, expected whole numbers that begin with 0, ascend and end with {tokens}, the tokens \
             that there are",
            given.data
        )
    };
    let whole = |x: &f64| (*x >= 0.0 && x.fract() == 0.0).then_some(*x as usize);
    let starts: Vec<usize> = given.data.iter().map(whole).collect::<Option<_>>().ok_or_else(wrong)?;
    let right = given.shape.len() == 1
        && starts.len() > 1
        && starts[0] == 0
        && starts.is_sorted()
        && starts[starts.len() - 1] == tokens;
    if right { Ok(Some(starts)) } else { Err(wrong()) }
}

impl<'a> Keys<'a> {
    /// Finds the keys of `batch` sequences in a key tensor with `pages` pages of `page` tokens.
    ///
    /// # Errors
    /// Returns an error if the table or the lengths have a wrong shape, or contain invalid pages or lengths.
    pub fn of(call: &'a Call, batch: usize, pages: usize, page: usize) -> Result<Self, String> {
        let name = call.operation().name;
        let table = call.optional("block_table");
        let fits = table.is_none_or(|table| table.shape.len() == 2 && table.shape[0] == batch);
        call.require(fits, "block_table", format_args!("[{batch}, pages of a sequence]"))?;
        let table = table.map(|table| (&table.data[..], table.cols()));
        call.expect("seq_lens", &[batch])?;
        let starts = starts(call, "cu_seqlens_k", page)?;
        if let Some(starts) = &starts
            && (starts.len() != batch + 1 || table.is_some() || call.optional("seq_lens").is_some())
        {
            let found = starts.len() - 1;
            return Err(format!(
                "{name}: 'cu_seqlens_k' is of {found} sequences, expected {batch}, and neither a block_table nor seq_lens next to it"
            ));
        }
        let room = table.map_or(page, |(_, cols)| cols * page);
        let whole = |x: f64, most: usize| (x >= 0.0 && x.fract() == 0.0 && x <= most as f64).then_some(x as usize);
        let lengths = match (call.optional("seq_lens"), &starts) {
            (None, Some(starts)) => starts.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            (None, None) => vec![room; batch],
            (Some(lengths), _) => {
                let lengths = lengths.data.iter().map(|x| {
                    let wrong = || format!("{name}: 'seq_lens' has {x}, expected whole numbers of at most {room} keys");
                    whole(*x, room).ok_or_else(wrong)
                });
                lengths.collect::<Result<_, _>>()?
            }
        };
        let keys = Self {
            call,
            page,
            pages,
            table,
            starts,
            room,
            lengths,
        };
        if let Some((table, cols)) = table {
            for (row, length) in table.chunks_exact(cols.max(1)).zip(&keys.lengths) {
                let mut used = row[..length.div_ceil(page.max(1))].iter();
                if let Some(wrong) = used.find(|x| whole(**x + 1.0, pages).is_none_or(|page| page == 0)) {
                    return Err(format!(
                        "{name}: 'block_table' has {wrong} for a page that is used, expected one of the {pages} pages of 'k'"
                    ));
                }
            }
        }
        Ok(keys)
    }

    /// Returns the number of keys of a sequence, or a wrong number for some faults. The causal mask aligns the last of the
    /// `queries` queries with the last of these keys.
    pub fn length(&self, sequence: usize, queries: usize) -> usize {
        match self.call.fault {
            Some("stale_length") => self.lengths[sequence].saturating_sub(queries),
            Some("next_length") if self.starts.is_none() => self.lengths[(sequence + 1) % self.lengths.len()],
            Some("no_lengths") if self.starts.is_none() => self.room,
            _ => self.lengths[sequence],
        }
    }

    /// Number of keys that a kernel reads from a sequence of `length` keys: all of them, except with some faults.
    pub fn read(&self, length: usize) -> usize {
        match self.call.fault {
            Some("last_key_missing") => length.saturating_sub(1),
            Some("last_page_missing") if self.table.is_some() => {
                length.saturating_sub(1) / self.page.max(1) * self.page
            }
            _ => length,
        }
    }

    /// Returns the location (page, slot) of each slot that a sequence has reserved but not filled with a key.
    pub fn unused(&self, sequence: usize) -> impl Iterator<Item = (usize, usize)> {
        // Count only the free slots of the last used page: the block table may not list later pages.
        let room = self.room.min(self.lengths[sequence].next_multiple_of(self.page.max(1)));
        let keys = if self.starts.is_some() {
            0..0
        } else {
            self.lengths[sequence]..room
        };
        keys.map(move |key| self.place(sequence, key))
    }

    /// Returns the page of a sequence's key, and the slot within the page.
    pub fn place(&self, sequence: usize, key: usize) -> (usize, usize) {
        let next = (sequence + 1) % self.lengths.len();
        if let Some(starts) = &self.starts {
            let begins = self.call.pick("next_start", next, sequence);
            return (0, (starts[begins] + key) % self.page);
        }
        let Some((table, cols)) = self.table else {
            return (sequence, key);
        };
        let (column, slot) = (key / self.page, key % self.page);
        let row = self.call.pick("next_table", next, sequence);
        let page = match self.call.is("pages_in_order") {
            true => row * cols + column,
            // Entries of the block table that are not used may hold any number, such as −1: read negative entries as 0.
            false => table[row * cols + column].max(0.0) as usize,
        };
        (page % self.pages, slot)
    }
}
