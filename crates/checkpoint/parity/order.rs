//! Orders that codes and scales are stored in by mistake, or by another program.

use super::Cause;
use super::problem::Problem;
use ulplab_core::layouts::{Groups, LAYOUTS};

/// Paddings of rows that are tried.
const STRIDES: usize = 64;

type At = Box<dyn Fn(usize, usize) -> usize + Send + Sync>;

/// A way to store a matrix.
pub struct Order {
    pub name: String,
    /// What it is called if it was not asked for.
    pub cause: Cause,
    /// Where it puts the entry of a row and a column; `usize::MAX` for nowhere.
    pub at: At,
    /// How far-fetched it is: the declared order 0, one mistake 1, two together 2.
    pub steps: u8,
}

/// The orders of a matrix; the first is the declared one.
pub struct Orders(pub Vec<Order>);

impl Orders {
    fn add(
        &mut self,
        name: impl Into<String>,
        cause: Cause,
        at: impl Fn(usize, usize) -> usize + Send + Sync + 'static,
    ) {
        let (name, at, steps) = (name.into(), Box::new(at) as At, u8::from(!self.0.is_empty()));
        self.0.push(Order { name, cause, at, steps });
    }

    /// An order with neighbouring entries exchanged, as one more mistake.
    fn exchanged(
        &mut self,
        of: &Shape,
        base: &str,
        name: &str,
        cause: Cause,
        bits: usize,
        at: fn(&Shape, usize, usize) -> usize,
    ) {
        let of = *of;
        let plain = base == "row-major";
        let name = if plain { name.into() } else { format!("{base}, {name}") };
        self.add(name, cause, move |r, c| at(&of, r, c) ^ bits);
        if let Some(last) = self.0.last_mut()
            && !plain
        {
            last.steps += 1;
        }
    }
}

/// Rows and columns of a matrix.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
}

impl Shape {
    fn flat(&self, r: usize, c: usize) -> usize {
        r * self.cols + c
    }

    fn column_major(&self, r: usize, c: usize) -> usize {
        c * self.rows + r
    }

    /// Mistakes that may happen to any matrix.
    fn common(self, orders: &mut Orders, len: usize, unit: &str, width: usize) {
        let Self { rows, cols } = self;
        let widest = len.saturating_sub(cols) / rows.saturating_sub(1).max(1);
        for stride in (cols + 1..=widest).take(STRIDES) {
            orders.add(format!("rows {stride} {unit} apart"), Cause::Layout, move |r, c| {
                r * stride + c
            });
        }
        let flat = move |r: usize, c: usize| r * cols + c;
        let layout = Cause::Layout;
        if rows > 1 && cols > 1 {
            orders.add("column-major", layout, move |r, c| c * rows + r);
            orders.add("in row order, rows reversed", layout, move |r, c| flat(rows - 1 - r, c));
            orders.add(
                "in row order, the two halves of the rows exchanged",
                layout,
                move |r, c| flat((r + rows / 2) % rows, c),
            );
            for by in [1usize, 2, 4, 8, 16, 32, 64].into_iter().filter(|by| *by < rows) {
                let name = format!("in row order, rows exchanged with those {by} away");
                orders.add(name, layout, move |r, c| flat(r ^ by, c));
            }
            for by in [1usize, 2, 4, 8, 16, 32].into_iter().filter(|by| *by < rows) {
                let (s, late) = (if by == 1 { "" } else { "s" }, format!("{by} row"));
                orders.add(format!("{late}{s} late, wrapped around"), layout, move |r, c| {
                    flat((r + by) % rows, c)
                });
                orders.add(format!("{late}{s} early, wrapped around"), layout, move |r, c| {
                    flat((r + rows - by) % rows, c)
                });
            }
            for parts in [2, 4, 8, 16, 32]
                .into_iter()
                .filter(|parts| rows % parts == 0 && rows > *parts)
            {
                let (a, b) = (rows / parts, parts);
                orders.add(
                    format!("with rows dealt to {parts} parts in turn"),
                    layout,
                    move |r, c| flat(r % b * a + r / b, c),
                );
                if a != b {
                    orders.add(
                        format!("with rows taken from {parts} parts in turn"),
                        layout,
                        move |r, c| flat(r % a * b + r / a, c),
                    );
                }
            }
        }
        if cols > 1 {
            orders.add("with columns reversed", layout, move |r, c| flat(r, cols - 1 - c));
            orders.add("reversed as a whole", layout, move |r, c| rows * cols - 1 - flat(r, c));
            orders.add("with the two halves of each row exchanged", layout, move |r, c| {
                flat(r, (c + cols / 2) % cols)
            });
            for parts in [2, 4, 8, cols / 4, cols / 2] {
                if parts > 1 && cols % parts == 0 && cols > parts {
                    let (a, b) = (cols / parts, parts);
                    orders.add(
                        format!("with columns dealt to {parts} parts in turn"),
                        layout,
                        move |r, c| flat(r, c % b * a + c / b),
                    );
                }
            }
        }
        for by in [1, 2, 3, 4, 8, width].into_iter().filter(|by| *by < len) {
            let s = if by == 1 { "" } else { "s" };
            orders.add(format!("{by} place{s} late"), layout, move |r, c| flat(r, c) + by);
            orders.add(format!("{by} place{s} early"), layout, move |r, c| {
                flat(r, c).checked_sub(by).unwrap_or(usize::MAX)
            });
            orders.add(
                format!("{by} place{s} late in each row, wrapped around"),
                layout,
                move |r, c| flat(r, (c + by) % cols),
            );
            orders.add(
                format!("{by} place{s} early in each row, wrapped around"),
                layout,
                move |r, c| flat(r, (c + cols - by % cols) % cols),
            );
        }
    }
}

/// Orders of codes.
pub fn of_codes(problem: &Problem) -> Orders {
    let grid = problem.grid;
    let shape = Shape {
        rows: grid.rows,
        cols: grid.cols,
    };
    let Shape { rows, cols } = shape;
    let bits = problem.format.element.stored_bits();
    let mut orders = Orders(Vec::new());
    orders.add("row-major", Cause::Layout, move |r, c| r * cols + c);
    let bases: [(&str, fn(&Shape, usize, usize) -> usize); 2] =
        [("row-major", Shape::flat), ("column-major", Shape::column_major)];
    for (base, at) in bases {
        let plain = base == "row-major";
        let nibbles = if plain { Cause::NibbleOrder } else { Cause::Layout };
        if bits == 4 {
            orders.exchanged(
                &shape,
                base,
                if plain {
                    "row-major, high nibble first"
                } else {
                    "high nibble first"
                },
                nibbles,
                1,
                at,
            );
        }
        for bytes in [2, 4, 8] {
            let name = format!("with the bytes of {}-bit words swapped", bytes * 8);
            orders.exchanged(&shape, base, &name, Cause::Layout, (bytes - 1) * 8 / bits.min(8), at);
            if bits == 4 {
                let name = format!("with the nibbles of {}-bit words in reverse order", bytes * 8);
                orders.exchanged(&shape, base, &name, Cause::NibbleOrder, bytes * 2 - 1, at);
            }
        }
    }
    if bits == 4 {
        let mut widths = vec![problem.grid.tile.1, 16, 32, 64, 128, cols];
        widths.retain(|width| *width % 2 == 0 && cols % width == 0);
        widths.sort_unstable();
        widths.dedup();
        for width in widths {
            let split = move |r: usize, c: usize| {
                let i = c % width;
                r * cols + c / width * width + i % (width / 2) * 2 + i / (width / 2)
            };
            let name = format!(
                "split: of every {width} elements the first half in low nibbles, the second in high ones (as in GGUF)"
            );
            orders.add(name, Cause::NibbleOrder, split);
            let name =
                format!("split: of every {width} elements the first half in high nibbles, the second in low ones");
            orders.add(name, Cause::NibbleOrder, move |r, c| split(r, c) ^ 1);
        }
        orders.add("with all bytes in reverse order", Cause::Layout, move |r, c| {
            (rows * cols - 1 - (r * cols + c)) ^ 1
        });
        if cols % 8 == 0 {
            let awq = |order: [usize; 8]| move |r: usize, c: usize| r * cols + c / 8 * 8 + order[c % 8];
            orders.add(
                "in AWQ's order: eight codes of a word as 0 2 4 6 1 3 5 7",
                Cause::NibbleOrder,
                awq([0, 4, 1, 5, 2, 6, 3, 7]),
            );
            orders.add(
                "in AWQ's order, undone where it was never done",
                Cause::NibbleOrder,
                awq([0, 2, 4, 6, 1, 3, 5, 7]),
            );
        }
    }
    shape.common(&mut orders, problem.stored_codes(), "elements", problem.grid.tile.1);
    let (height, width) = problem.grid.tile;
    let mut tiles = vec![
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
        (height, width),
    ];
    tiles.dedup();
    for (h, w) in tiles {
        if h < 2 || w > cols || rows % h != 0 || cols % w != 0 || (h == rows && w == cols) {
            continue;
        }
        let inside = move |r: usize, c: usize| r % h * w + c % w;
        orders.add(format!("tile by tile of {h} × {w}"), Cause::Layout, move |r, c| {
            (r / h * (cols / w) + c / w) * h * w + inside(r, c)
        });
        orders.add(
            format!("tile by tile of {h} × {w}, tiles in column order"),
            Cause::Layout,
            move |r, c| (c / w * (rows / h) + r / h) * h * w + inside(r, c),
        );
        orders.add(
            format!("transposed within tiles of {h} × {w}"),
            Cause::Layout,
            move |r, c| (r / h * (cols / w) + c / w) * h * w + c % w * h + r % h,
        );
    }
    orders
}

/// The places of a tile of 128 × 4 scales, by row and column in the tile.
type Inside = (&'static str, fn(usize, usize) -> usize);

const INSIDE: [Inside; 6] = [
    ("", |r, c| r % 32 * 16 + r / 32 * 4 + c),
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

/// Orders of scales.
pub fn of_scales(problem: &Problem) -> Orders {
    let (rows, cols) = problem.grid.count;
    let shape = Shape { rows, cols };
    let (size, len) = (problem.scale_bytes(), problem.stored_scales());
    let mut orders = Orders(Vec::new());
    orders.add("row-major", Cause::Layout, move |r, c| r * cols + c);
    for layout in LAYOUTS
        .iter()
        .filter(|layout| layout.groups == Groups::None && layout.scale == size)
    {
        let Ok(placement) = layout.place(&[rows, cols], &[]) else {
            continue;
        };
        let blocked = layout.name.starts_with("blocked");
        let cause = if blocked { Cause::Swizzle } else { Cause::Layout };
        orders.add(layout.name, cause, move |r, c| {
            placement.offset(r, c).map_or(usize::MAX, |offset| offset / size)
        });
    }
    shape.common(&mut orders, len, "scales", 16);
    if rows * cols > 1 && size == 1 {
        let (down, across) = (rows.div_ceil(128), cols.div_ceil(4));
        for (inside, place) in INSIDE {
            let add = |orders: &mut Orders, name: String, tile: Box<dyn Fn(usize, usize) -> usize + Send + Sync>| {
                let at = move |r: usize, c: usize| tile(r / 128, c / 4) * 512 + place(r % 128, c % 4);
                orders.add(format!("{name}{inside}"), Cause::Swizzle, at);
            };
            if !inside.is_empty() {
                add(
                    &mut orders,
                    "in tiles of 128 × 4".into(),
                    Box::new(move |r, c| r * across + c),
                );
            }
            if down > 1 && across > 1 {
                let name = "in tiles of 128 × 4, the tiles in column order";
                add(&mut orders, name.into(), Box::new(move |r, c| c * down + r));
            }
            let mut widths: Vec<usize> = (across.saturating_sub(2).max(1)..=across + 8)
                .chain([8, 16, 32, 64, 128].map(|to: usize| across.next_multiple_of(to)))
                .filter(|width| *width != across && down > 1)
                .collect();
            widths.sort_unstable();
            widths.dedup();
            for width in widths {
                let name = format!(
                    "blocked_128x4 with K padded to {} scales in the place of {}",
                    width * 4,
                    across * 4
                );
                add(&mut orders, name, Box::new(move |r, c| r * width + c));
            }
        }
        unswizzled(&mut orders, shape, len);
    }
    if rows * cols > 1 {
        let bases: [(&str, fn(&Shape, usize, usize) -> usize); 2] =
            [("row-major", Shape::flat), ("column-major", Shape::column_major)];
        for (base, at) in bases {
            for words in [2usize, 4, 8] {
                let name = match size {
                    1 => format!("with the bytes of {}-bit words swapped", words * 8),
                    _ => format!("with every {words} scales in reverse order"),
                };
                orders.exchanged(&shape, base, &name, Cause::Layout, words - 1, at);
            }
        }
        let across = cols.div_ceil(4);
        if size == 1 {
            for words in [2usize, 4, 8] {
                let swizzled = move |r: usize, c: usize| {
                    let inside = r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
                    ((r / 128 * across + c / 4) * 512 + inside) ^ (words - 1)
                };
                let name = format!("blocked_128x4, with the bytes of {}-bit words swapped", words * 8);
                orders.add(name, Cause::Swizzle, swizzled);
                if let Some(last) = orders.0.last_mut() {
                    last.steps += 1;
                }
            }
        }
    }
    if let Some(declared) = problem.stored.layout
        && let Some(at) = orders.0.iter().position(|order| order.name == declared.name)
    {
        orders.0.swap(0, at);
        orders.0[0].steps = 0;
        for order in &mut orders.0[1..] {
            order.steps = order.steps.max(1);
            // What is in a plain order is not in the blocked one that was declared.
            if declared.name.starts_with("blocked") && order.name == "row-major" {
                order.cause = Cause::Swizzle;
            }
        }
    }
    orders
}

/// Row-major scales that were taken out of tiles which they never were in.
fn unswizzled(orders: &mut Orders, shape: Shape, len: usize) {
    let Shape { rows, cols } = shape;
    if rows % 128 != 0 || cols % 4 != 0 || rows * cols > len || rows * cols > 1 << 26 {
        return;
    }
    let place = move |i: usize| {
        let (tile, i) = (i / 512, i % 512);
        let (r, c) = (i / 16 + i % 16 / 4 * 32, i % 4);
        (tile / (cols / 4) * 128 + r) * cols + tile % (cols / 4) * 4 + c
    };
    orders.add(
        "un-swizzled: taken out of blocked_128x4, which they were not in",
        Cause::Swizzle,
        move |r, c| place(r * cols + c),
    );
    let forward =
        move |r: usize, c: usize| (r / 128 * (cols / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
    orders.add("swizzled twice into blocked_128x4", Cause::Swizzle, move |r, c| {
        let once = forward(r, c);
        forward(once / cols, once % cols)
    });
}
