//! Orders in which a faulty kernel or another program may store codes and scales.

use std::collections::BTreeSet;

use super::Cause;
use super::problem::Problem;
use ulplab_core::error::counted;
use ulplab_core::layouts::{Groups, LAYOUTS};

/// Maximum number of row strides that are tested, for rows that were stored with padding.
const STRIDES: usize = 64;

type At = Box<dyn Fn(usize, usize) -> usize + Send + Sync>;

/// Number of rows and of columns of a matrix.
type Size = (usize, usize);

/// An order in which the entries of a matrix may be stored.
pub struct Order {
    pub name: String,
    /// Cause to report if the bytes have this order, but another was declared.
    pub cause: Cause,
    /// Maps row and column of an entry to its index in the buffer; `usize::MAX` if the entry is not stored.
    pub at: At,
    /// Number of mistakes that lead to this order: 0 for the declared order, else 1 or 2.
    pub steps: u8,
}

/// The orders that are tested on a matrix. The first one is the declared order.
struct Orders(Vec<Order>);

impl Orders {
    fn new(len: usize) -> Self {
        let mut orders = Self(Vec::new());
        orders.add("row-major", Cause::Layout, move |r, c| r * len + c);
        orders
    }

    fn add(
        &mut self,
        name: impl Into<String>,
        cause: Cause,
        at: impl Fn(usize, usize) -> usize + Send + Sync + 'static,
    ) {
        let (name, at, steps) = (name.into(), Box::new(at) as At, u8::from(!self.0.is_empty()));
        self.0.push(Order { name, cause, at, steps });
    }

    fn layout(&mut self, name: impl Into<String>, at: impl Fn(usize, usize) -> usize + Send + Sync + 'static) {
        self.add(name, Cause::Layout, at);
    }

    /// Counts one more mistake for the order that was added last.
    fn further(&mut self) {
        self.0.last_mut().expect("an order was added").steps += 1;
    }

    /// Adds row-major or column-major order with index XOR `bits`, i.e. with entries exchanged within small groups. Column-major
    /// order counts as one more mistake.
    fn exchanged(&mut self, (rows, cols): Size, by_columns: bool, name: &str, cause: Cause, bits: usize) {
        match by_columns {
            false => self.add(name, cause, move |r, c| (r * cols + c) ^ bits),
            true => {
                self.add(format!("column-major, {name}"), cause, move |r, c| {
                    (c * rows + r) ^ bits
                });
                self.further();
            }
        }
    }

    /// Adds wrong orders that are possible for codes and for scales: wrong strides, and transposed, reversed, rotated or
    /// interleaved rows and columns.
    fn common(&mut self, (rows, cols): Size, len: usize, unit: &str, width: usize) {
        let widest = len.saturating_sub(cols) / rows.saturating_sub(1).max(1);
        for stride in (cols + 1..=widest).take(STRIDES) {
            self.layout(format!("rows {stride} {unit} apart"), move |r, c| r * stride + c);
        }
        let flat = move |r: usize, c: usize| r * cols + c;
        if rows > 1 && cols > 1 {
            self.layout("column-major", move |r, c| c * rows + r);
            self.layout("in row order, rows reversed", move |r, c| flat(rows - 1 - r, c));
            let name = "in row order, the two halves of the rows exchanged";
            self.layout(name, move |r, c| flat((r + rows / 2) % rows, c));
            for by in [1usize, 2, 4, 8, 16, 32, 64].into_iter().filter(|by| *by < rows) {
                let name = format!("in row order, rows exchanged with those {by} away");
                self.layout(name, move |r, c| flat(r ^ by, c));
            }
            for by in [1usize, 2, 4, 8, 16, 32].into_iter().filter(|by| *by < rows) {
                let moved = counted(by, "row");
                let name = format!("{moved} late, wrapped around");
                self.layout(name, move |r, c| flat((r + by) % rows, c));
                let name = format!("{moved} early, wrapped around");
                self.layout(name, move |r, c| flat((r + rows - by) % rows, c));
            }
            let divides = |parts: &usize| rows % parts == 0 && rows > *parts;
            for parts in [2, 4, 8, 16, 32].into_iter().filter(divides) {
                let each = rows / parts;
                let name = format!("with rows dealt to {parts} parts in turn");
                self.layout(name, move |r, c| flat(r % parts * each + r / parts, c));
                if each != parts {
                    let name = format!("with rows taken from {parts} parts in turn");
                    self.layout(name, move |r, c| flat(r % each * parts + r / each, c));
                }
            }
        }
        if cols > 1 {
            self.layout("with columns reversed", move |r, c| flat(r, cols - 1 - c));
            self.layout("reversed as a whole", move |r, c| rows * cols - 1 - flat(r, c));
            let name = "with the two halves of each row exchanged";
            self.layout(name, move |r, c| flat(r, (c + cols / 2) % cols));
            let divides = |parts: &usize| *parts > 1 && cols % parts == 0 && cols > *parts;
            for parts in [2, 4, 8, cols / 4, cols / 2].into_iter().filter(divides) {
                let (each, name) = (cols / parts, format!("with columns dealt to {parts} parts in turn"));
                self.layout(name, move |r, c| flat(r, c % parts * each + c / parts));
            }
        }
        for by in [1, 2, 3, 4, 8, width].into_iter().filter(|by| *by < len) {
            let moved = counted(by, "place");
            self.layout(format!("{moved} late"), move |r, c| flat(r, c) + by);
            let early = move |r, c| flat(r, c).checked_sub(by).unwrap_or(usize::MAX);
            self.layout(format!("{moved} early"), early);
            let name = format!("{moved} late in each row, wrapped around");
            self.layout(name, move |r, c| flat(r, (c + by) % cols));
            let name = format!("{moved} early in each row, wrapped around");
            self.layout(name, move |r, c| flat(r, (c + cols - by % cols) % cols));
        }
    }
}

/// Heights and widths of tiles of codes that are tested, in addition to the tile of the format.
const TILES: [(usize, usize); 13] = [
    (8, 8),
    (8, 16),
    (16, 8),
    (16, 16),
    (8, 32),
    (16, 32),
    (32, 32),
    (64, 64),
    (128, 128),
    (128, 64),
    (64, 16),
    (128, 16),
    (128, 32),
];

/// Returns the orders in which codes may be stored. The first one is row-major, the correct order.
pub fn of_codes(problem: &Problem) -> Vec<Order> {
    let (rows, cols) = (problem.grid.rows, problem.grid.cols);
    let shape = (rows, cols);
    let bits = problem.format.element.stored_bits();
    let mut orders = Orders::new(cols);
    for (by_columns, name, cause) in [
        (false, "row-major, high nibble first", Cause::NibbleOrder),
        (true, "high nibble first", Cause::Layout),
    ] {
        if bits == 4 {
            orders.exchanged(shape, by_columns, name, cause, 1);
        }
        for bytes in [2, 4, 8] {
            let name = format!("with the bytes of {}-bit words swapped", bytes * 8);
            orders.exchanged(shape, by_columns, &name, Cause::Layout, (bytes - 1) * 8 / bits.min(8));
            if bits == 4 {
                let name = format!("with the nibbles of {}-bit words in reverse order", bytes * 8);
                orders.exchanged(shape, by_columns, &name, Cause::NibbleOrder, bytes * 2 - 1);
            }
        }
    }
    if bits == 4 {
        nibbles(&mut orders, shape, problem.grid.tile.1);
    }
    let len = problem.stored.data.len() * 8 / bits;
    orders.common(shape, len, "elements", problem.grid.tile.1);
    let own = Some(problem.grid.tile).filter(|own| TILES.last() != Some(own));
    for (h, w) in TILES.into_iter().chain(own) {
        if h < 2 || w > cols || rows % h != 0 || cols % w != 0 || (h == rows && w == cols) {
            continue;
        }
        let inside = move |r: usize, c: usize| r % h * w + c % w;
        let by_rows = move |r: usize, c: usize| (r / h * (cols / w) + c / w) * h * w;
        let name = format!("tile by tile of {h} × {w}");
        orders.layout(name, move |r, c| by_rows(r, c) + inside(r, c));
        let name = format!("tile by tile of {h} × {w}, tiles in column order");
        orders.layout(name, move |r, c| (c / w * (rows / h) + r / h) * h * w + inside(r, c));
        let name = format!("transposed within tiles of {h} × {w}");
        orders.layout(name, move |r, c| by_rows(r, c) + c % w * h + r % h);
    }
    orders.0
}

/// Adds wrong orders of 4-bit codes within bytes and words. `tile` is the number of columns that share a scale.
fn nibbles(orders: &mut Orders, (rows, cols): Size, tile: usize) {
    let widths = BTreeSet::from([tile, 16, 32, 64, 128, cols]).into_iter();
    for width in widths.filter(|width| width % 2 == 0 && cols % width == 0) {
        let split = move |r: usize, c: usize| {
            let i = c % width;
            r * cols + c / width * width + i % (width / 2) * 2 + i / (width / 2)
        };
        let name = format!(
            "split: of every {width} elements the first half in low nibbles, the second in high ones (as in GGUF)"
        );
        orders.add(name, Cause::NibbleOrder, split);
        let name = format!("split: of every {width} elements the first half in high nibbles, the second in low ones");
        orders.add(name, Cause::NibbleOrder, move |r, c| split(r, c) ^ 1);
    }
    orders.layout("with all bytes in reverse order", move |r, c| {
        (rows * cols - 1 - (r * cols + c)) ^ 1
    });
    if cols % 8 == 0 {
        for (name, order) in [
            (
                "in AWQ's order: eight codes of a word as 0 2 4 6 1 3 5 7",
                [0, 4, 1, 5, 2, 6, 3, 7],
            ),
            (
                "in AWQ's order, undone where it was never done",
                [0, 2, 4, 6, 1, 3, 5, 7],
            ),
        ] {
            orders.add(name, Cause::NibbleOrder, move |r, c| {
                r * cols + c / 8 * 8 + order[c % 8]
            });
        }
    }
}

/// An order of the scales within a tile of 128 × 4: suffix for the name of the order, and function from row and column in the
/// tile to the index.
type Inside = (&'static str, fn(usize, usize) -> usize);

const INSIDE: [Inside; 6] = [
    ("", in_tile),
    (", tiles in rows of 4", |r, c| r * 4 + c),
    (", tiles column by column", |r, c| c * 128 + r),
    (", tiles with columns and quarters exchanged", |r, c| {
        r % 32 * 16 + c * 4 + r / 32
    }),
    (", tiles with rows dealt the other way", |r, c| {
        r % 4 * 128 + r / 4 * 4 + c
    }),
    (", tiles with quarters one after another and transposed", |r, c| {
        r / 32 * 128 + c * 32 + r % 32
    }),
];

/// Position of a scale within a tile of the layout blocked_128x4.
fn in_tile(r: usize, c: usize) -> usize {
    r % 32 * 16 + r / 32 * 4 + c
}

/// Returns the orders in which scales may be stored. The first one is the declared layout, or else row-major.
pub fn of_scales(problem: &Problem) -> Vec<Order> {
    let (rows, cols) = problem.grid.count;
    let shape = (rows, cols);
    let size = problem.scale_bytes();
    let len = problem.stored.scale.len().checked_div(size).unwrap_or(0);
    let mut orders = Orders::new(cols);
    let plain = LAYOUTS.iter().filter(|layout| layout.groups == Groups::None);
    for layout in plain.filter(|layout| layout.scale == size) {
        let Ok(placement) = layout.place(&[rows, cols], &[]) else {
            continue;
        };
        let blocked = layout.name.starts_with("blocked");
        let cause = if blocked { Cause::Swizzle } else { Cause::Layout };
        orders.add(layout.name, cause, move |r, c| {
            placement.offset(r, c).map_or(usize::MAX, |offset| offset / size)
        });
    }
    orders.common(shape, len, "scales", 16);
    if rows * cols > 1 {
        if size == 1 {
            tiles(&mut orders, shape);
            unswizzled(&mut orders, shape, len);
        }
        for by_columns in [false, true] {
            for words in [2usize, 4, 8] {
                let name = match size {
                    1 => format!("with the bytes of {}-bit words swapped", words * 8),
                    _ => format!("with every {words} scales in reverse order"),
                };
                orders.exchanged(shape, by_columns, &name, Cause::Layout, words - 1);
            }
        }
        let across = cols.div_ceil(4);
        for words in [2usize, 4, 8].into_iter().filter(|_| size == 1) {
            let name = format!("blocked_128x4, with the bytes of {}-bit words swapped", words * 8);
            orders.add(name, Cause::Swizzle, move |r, c| {
                ((r / 128 * across + c / 4) * 512 + in_tile(r % 128, c % 4)) ^ (words - 1)
            });
            orders.further();
        }
    }
    if let Some(declared) = problem.stored.layout
        && let Some(at) = orders.0.iter().position(|order| order.name == declared.name)
    {
        orders.0.swap(0, at);
        orders.0[0].steps = 0;
        for order in &mut orders.0[1..] {
            order.steps = order.steps.max(1);
            // A blocked layout was declared, but the scales are row-major: the kernel left out the swizzle.
            if declared.name.starts_with("blocked") && order.name == "row-major" {
                order.cause = Cause::Swizzle;
            }
        }
    }
    orders.0
}

/// Adds wrong variants of the layout blocked_128x4: another order of the tiles of 128 × 4 or within a tile, or another padding of
/// K.
fn tiles(orders: &mut Orders, (rows, cols): Size) {
    let (down, across) = (rows.div_ceil(128), cols.div_ceil(4));
    for (inside, place) in INSIDE {
        let mut add = |name: String, tile: At| {
            let at = move |r: usize, c: usize| tile(r / 128, c / 4) * 512 + place(r % 128, c % 4);
            orders.add(format!("{name}{inside}"), Cause::Swizzle, at);
        };
        if !inside.is_empty() {
            add("in tiles of 128 × 4".into(), Box::new(move |r, c| r * across + c));
        }
        if down > 1 && across > 1 {
            let name = "in tiles of 128 × 4, the tiles in column order";
            add(name.into(), Box::new(move |r, c| c * down + r));
        }
        let near = across.saturating_sub(2).max(1)..=across + 8;
        let widths: BTreeSet<usize> = near
            .chain([8, 16, 32, 64, 128].map(|to| across.next_multiple_of(to)))
            .collect();
        for width in widths.into_iter().filter(|width| *width != across && down > 1) {
            let (padded, place) = (width * 4, across * 4);
            let name = format!("blocked_128x4 with K padded to {padded} scales in the place of {place}");
            add(name, Box::new(move |r, c| r * width + c));
        }
    }
}

/// Adds two orders: row-major scales that were un-swizzled by mistake, and scales that were swizzled twice.
fn unswizzled(orders: &mut Orders, (rows, cols): Size, len: usize) {
    if rows % 128 != 0 || cols % 4 != 0 || rows * cols > len || rows * cols > 1 << 26 {
        return;
    }
    let place = move |i: usize| {
        let (tile, i) = (i / 512, i % 512);
        let (r, c) = (i / 16 + i % 16 / 4 * 32, i % 4);
        (tile / (cols / 4) * 128 + r) * cols + tile % (cols / 4) * 4 + c
    };
    let name = "un-swizzled: taken out of blocked_128x4, which they were not in";
    orders.add(name, Cause::Swizzle, move |r, c| place(r * cols + c));
    let forward = move |r: usize, c: usize| (r / 128 * (cols / 4) + c / 4) * 512 + in_tile(r % 128, c % 4);
    orders.add("swizzled twice into blocked_128x4", Cause::Swizzle, move |r, c| {
        let once = forward(r, c);
        forward(once / cols, once % cols)
    });
}
