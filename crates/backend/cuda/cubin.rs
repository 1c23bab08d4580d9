//! Information on the kernels of a cubin: the parameters they take and the threads they allow, from its sections, and what
//! the assembler reported of registers and memory, from the log of the compilation.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use serde::Serialize;

use super::toolkit::Cubin;

/// A compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that a thread spills to local memory.
    pub spilled: u32,
    /// Bytes of local memory of a thread, spills included.
    pub stack: u32,
    /// Bytes of static shared memory of a thread block.
    pub shared: u32,
    /// Most threads of a block, where the source bounds them.
    pub max_threads: Option<u32>,
    /// Bytes of each parameter.
    pub parameters: Vec<u32>,
}

/// Attributes of `.nv.info` sections: format, number, and value.
const SIZED: u8 = 4;
const MAX_THREADS: u8 = 0x05;
const PARAMETER: u8 = 0x17;

/// All kernels of a cubin, by name. The error names the part that is not valid ELF.
pub fn entries(cubin: &Cubin) -> Result<BTreeMap<String, Entry>, String> {
    let mut entries = BTreeMap::new();
    for (name, bytes) in sections(&cubin.bytes)? {
        if let Some(entry) = name.strip_prefix(".nv.info.") {
            entries.insert(entry.to_string(), attributes(bytes));
        }
    }
    report(&cubin.log, &mut entries);
    Ok(entries)
}

/// Names and bytes of the sections of a 64-bit ELF file.
fn sections(file: &[u8]) -> Result<Vec<(String, &[u8])>, String> {
    let wrong = |error: object::Error| format!("the machine code is not a 64-bit ELF file: {error}");
    let elf = ElfFile64::<Endianness>::parse(file).map_err(wrong)?;
    let mut sections = Vec::new();
    for section in elf.sections() {
        let name = section.name().map_err(wrong)?.to_string();
        sections.push((name, section.data().map_err(wrong)?));
    }
    Ok(sections)
}

/// The content of a kernel's section.
fn attributes(mut bytes: &[u8]) -> Entry {
    let mut entry = Entry::default();
    let mut parameters = BTreeMap::new();
    while let [format, attribute, low, high, rest @ ..] = bytes {
        let len = if *format == SIZED {
            usize::from(u16::from_le_bytes([*low, *high]))
        } else {
            0
        };
        let Some((value, after)) = rest.split_at_checked(len) else {
            break;
        };
        let words: Vec<u32> = value
            .chunks_exact(4)
            .map(|word| word.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
            .collect();
        match (*attribute, &words[..]) {
            // Index, ordinal and offset, then flags below the size.
            (PARAMETER, [_, place, flags]) if *format == SIZED => {
                parameters.insert(place & 0xffff, flags >> 18);
            }
            (MAX_THREADS, sizes) if *format == SIZED => {
                entry.max_threads = Some(sizes.iter().fold(1, |all: u32, size| all.saturating_mul(*size)));
            }
            _ => {}
        }
        bytes = after;
    }
    entry.parameters = parameters.into_values().collect();
    entry
}

/// Adds the assembler's report, kernel by kernel.
fn report(log: &str, entries: &mut BTreeMap<String, Entry>) {
    let mut current = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split('\'').next();
        }
        let Some(entry) = current.and_then(|name| entries.get_mut(name)) else {
            continue;
        };
        // `Used 155 registers, used 0 barriers, 256 bytes smem`, `800 bytes stack frame, 0 bytes spill stores, …`
        let parts = || {
            line.split([',', ':'])
                .map(|part| part.trim().trim_start_matches("ptxas").trim())
        };
        let before = |unit: &str| {
            let found = parts().find_map(|part| part.strip_suffix(unit))?;
            found.split_whitespace().next_back()?.parse().ok()
        };
        entry.registers = before(" registers").unwrap_or(entry.registers);
        entry.shared = before(" bytes smem").unwrap_or(entry.shared);
        entry.stack = before(" bytes stack frame").unwrap_or(entry.stack);
        entry.spilled = before(" bytes spill stores").unwrap_or(entry.spilled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'beta' for 'sm_90a'
ptxas info    : Function properties for beta
ptxas         .     800 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 155 registers, used 0 barriers, 800 bytes cumulative stack size
ptxas info    : Compiling entry function 'alpha' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 256 bytes smem";

    #[test]
    fn the_log_is_read_kernel_by_kernel() {
        let mut entries = BTreeMap::from(["alpha", "beta"].map(|name| (name.to_string(), Entry::default())));
        report(LOG, &mut entries);
        let of = |name: &str| {
            let entry = &entries[name];
            [entry.registers, entry.spilled, entry.stack, entry.shared]
        };
        assert_eq!([of("alpha"), of("beta")], [[14, 0, 0, 256], [155, 12, 800, 0]]);
    }

    /// The section of `alpha(float *x, int n, float s)`, and of a kernel with `__launch_bounds__(128)`, by NVRTC 13.0.
    #[test]
    fn parameters_and_bounds_are_read_from_a_section() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let alpha = words(&[
            0x0437_0400,
            0x8200_0000,
            0x0417_0c00,
            0,
            0x0200_0c00,
            0x00f0_1100,
            0x0417_0c00,
            0,
            0x0100_0800,
            0x00f0_1100,
            0x0417_0c00,
            0,
            0,
            0x00f0_2100,
            0x0350_0000,
            0x031b_ff00,
        ]);
        assert_eq!(attributes(&alpha).parameters, [8, 4, 4]);
        assert_eq!(attributes(&alpha).max_threads, None);
        let beta = words(&[0x0350_0000, 0x0405_0c00, 0x8000_0000, 0x0100_0000, 0x0100_0000]);
        assert_eq!(attributes(&beta).max_threads, Some(128));
        for len in 0..alpha.len() {
            attributes(&alpha[..len]);
        }
    }

    #[test]
    fn what_is_no_machine_code_is_an_error() {
        for bytes in [&b""[..], b"\x7fELF\x02\x01", &[0x7f; 100], b"not ELF at all"] {
            let cubin = Cubin {
                bytes: bytes.to_vec(),
                log: String::new(),
            };
            assert!(entries(&cubin).is_err());
        }
    }
}
