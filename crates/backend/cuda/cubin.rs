//! Information on the kernels of a cubin. Parameters and thread limits come from the ELF sections; registers and memory come from
//! the assembler's report in the compilation log.

use std::collections::BTreeMap;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use serde::Serialize;

use super::toolkit::Cubin;

/// Resources and parameters of a compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Number of registers per thread.
    pub registers: u32,
    /// Bytes of registers that each thread spills to local memory.
    pub spilled: u32,
    /// Bytes of local memory per thread, spills included.
    pub stack: u32,
    /// Bytes of static shared memory per thread block.
    pub shared: u32,
    /// Largest number of threads per block, if the source sets a bound.
    pub max_threads: Option<u32>,
    /// Bytes of each parameter.
    pub parameters: Vec<u32>,
}

/// Constants of `.nv.info` sections. `SIZED` is the format byte of an attribute with a length field; the other two are the IDs of
/// attributes.
const SIZED: u8 = 4;
const MAX_THREADS: u8 = 0x05;
const PARAMETER: u8 = 0x17;

/// Returns all kernels of a cubin by name. Returns an error if the cubin is not a valid 64-bit ELF file.
pub fn entries(cubin: &Cubin) -> Result<BTreeMap<String, Entry>, String> {
    let wrong = |error: object::Error| format!("the machine code is not a 64-bit ELF file: {error}");
    let elf = ElfFile64::<Endianness>::parse(&*cubin.bytes).map_err(wrong)?;
    let mut entries = BTreeMap::new();
    for section in elf.sections() {
        let (name, bytes) = (section.name().map_err(wrong)?, section.data().map_err(wrong)?);
        if let Some(entry) = name.strip_prefix(".nv.info.") {
            entries.insert(entry.to_string(), attributes(bytes));
        }
    }
    report(&cubin.log, &mut entries);
    Ok(entries)
}

/// Parses the `.nv.info` section of a kernel.
pub fn attributes(mut bytes: &[u8]) -> Entry {
    let mut entry = Entry::default();
    let mut parameters = BTreeMap::new();
    while let [format, attribute, low, high, rest @ ..] = bytes {
        let len = match *format {
            SIZED => u16::from_le_bytes([*low, *high]).into(),
            _ => 0,
        };
        let Some((value, after)) = rest.split_at_checked(len) else {
            break;
        };
        let words = value.as_chunks().0.iter();
        let words: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
        match (*attribute, &words[..]) {
            // The attribute has three 32-bit words: an index; the parameter's ordinal (low half) and offset; flags, with the
            // parameter's size from bit 18 on.
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

/// Parses the assembler's log, and adds the registers and memory of each kernel to `entries`.
pub fn report<'a>(log: &'a str, entries: &mut BTreeMap<String, Entry>) {
    let mut current = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split('\'').next();
        }
        let Some(entry) = current.and_then(|name| entries.get_mut(name)) else {
            continue;
        };
        // Examples of lines in the log: `Used 155 registers, used 0 barriers, 256 bytes smem`, `800 bytes stack frame, 0 bytes
        // spill stores, …`
        let plain = |part: &'a str| part.trim().trim_start_matches("ptxas").trim();
        let parts = || line.split([',', ':']).map(plain);
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
