//! Digest of the machine code of each entry point of a cubin. Parts that do not affect the execution are left out: names, line
//! numbers, the order of entry points.

use std::collections::{BTreeMap, BTreeSet};

use object::read::elf::{ElfFile64, Rel, Rela, SectionHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolIndex, SymbolKind};

use super::Digest;

/// Prefixes of the sections that determine the behaviour of an entry point; the entry point's name follows after a dot.
const OF_ENTRY: [&str; 6] = [
    ".text",
    ".nv.info",
    SHARED,
    ".nv.constant0",
    ".nv.constant2",
    ".nv.local",
];
/// Prefix of the sections for static shared memory. Only their size, in whole kilobytes, is hashed: they have no content, and the
/// instructions contain the addresses. The system reserves the first kilobyte. An entry point without the section is treated like
/// one that uses only this kilobyte.
const SHARED: &str = ".nv.shared";
const RESERVED: u64 = 1024;
/// Attributes of `.nv.info` whose first word is a symbol index, and the attribute that is a list of symbol indices.
const OF_SYMBOL: [u8; 5] = [0x0a, 0x11, 0x12, 0x23, 0x2f];
const EXTERNS: u8 = 0x0f;
/// Format byte of the `.nv.info` attributes that have a length and a payload of that many bytes.
const SIZED: u8 = 4;

/// Computes a digest of each entry point of a cubin, by the name of the entry point.
///
/// # Errors
/// Returns an error if the bytes are not a 64-bit ELF file, end too early, or lack a part that a cubin has. The error names the
/// problem.
pub fn of(cubin: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let elf =
        ElfFile64::<Endianness>::parse(cubin).map_err(|error| format!("the machine code cannot be read: {error}"))?;
    let names = elf
        .sections()
        .filter_map(|section| section.name().ok()?.strip_prefix(".nv.info."));
    let code = Code {
        elf: &elf,
        bytes: cubin,
    };
    let digest = |name: &str| {
        let mut digest = Digest::default();
        let added = code.function(&mut digest, name, &mut BTreeSet::new());
        added.map_err(|error| format!("{name}: {error}"))?;
        Ok((name.into(), digest.finish()))
    };
    names.map(digest).collect()
}

struct Code<'a> {
    elf: &'a ElfFile64<'a, Endianness>,
    bytes: &'a [u8],
}

const LITTLE: Endianness = Endianness::Little;

impl Code<'_> {
    /// Adds to the digest everything that determines the behaviour of a function: its sections, registers and stack, and the
    /// symbols it refers to. `open` has the names of the functions that are being added: with it, a recursive function is added
    /// only once.
    fn function(&self, digest: &mut Digest, name: &str, open: &mut BTreeSet<String>) -> object::Result<()> {
        open.insert(name.into());
        for part in OF_ENTRY {
            let prefix = format!("{part}.");
            let Some(section) = self.elf.section_by_name(&format!("{prefix}{name}")) else {
                if part == SHARED {
                    digest.text(&prefix).count(RESERVED as usize);
                }
                continue;
            };
            let (bytes, size, align) = (section.data()?, section.size(), section.align());
            // Count whole kilobytes: the exact size depends on the other kernels of the file, because sizes are rounded up to the
            // largest alignment of all kernels that are compiled together.
            if part == SHARED {
                digest.text(&prefix).count(size.next_multiple_of(RESERVED) as usize);
                continue;
            }
            digest.text(&prefix).count(size as usize).count(align as usize);
            match part {
                ".nv.info" => self.attributes(digest, bytes, name, None)?,
                // The upper byte of `sh_info` is the register count. The lower bytes are a symbol index, which is left out.
                ".text" => {
                    let registers = section.elf_section_header().sh_info(LITTLE) >> 24;
                    digest.count(registers as usize).bytes(bytes);
                }
                _ => drop(digest.bytes(bytes)),
            }
        }
        if let Some(section) = self.elf.section_by_name(".nv.info") {
            self.attributes(digest, section.data()?, name, Some(name))?;
        }
        for prefix in [".rela.text.", ".rel.text."] {
            let Some(section) = self.elf.section_by_name(&format!("{prefix}{name}")) else {
                continue;
            };
            let section = section.elf_section_header();
            if let Some((relocations, _)) = section.rela(LITTLE, self.bytes)? {
                for relocation in relocations {
                    digest.bytes(&relocation.r_offset(LITTLE).to_le_bytes());
                    digest.bytes(&relocation.r_addend(LITTLE).to_le_bytes());
                    digest.count(relocation.r_type(LITTLE, false) as usize);
                    self.symbol(digest, relocation.r_sym(LITTLE, false) as usize, name, open)?;
                }
            } else if let Some((relocations, _)) = section.rel(LITTLE, self.bytes)? {
                for relocation in relocations {
                    digest.bytes(&relocation.r_offset(LITTLE).to_le_bytes());
                    digest.count(relocation.r_type(LITTLE) as usize);
                    self.symbol(digest, relocation.r_sym(LITTLE) as usize, name, open)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the meaning of a symbol to the digest: the content of a constant or of memory, the code of a function, or the name of
    /// an external symbol.
    fn symbol(&self, digest: &mut Digest, number: usize, of: &str, open: &mut BTreeSet<String>) -> object::Result<()> {
        let symbol = self.elf.symbol_by_index(SymbolIndex(number))?;
        let (value, size) = (symbol.address(), symbol.size());
        let Some(index) = symbol.section_index() else {
            let name = String::from_utf8_lossy(symbol.name_bytes()?);
            digest.text("outside").text(name);
            return Ok(());
        };
        let section = self.elf.section_by_index(index)?;
        let place = section.name()?;
        if let Some(function) = place.strip_prefix(".text.") {
            digest.text("function").bytes(&value.to_le_bytes());
            return match open.contains(function) {
                true => {
                    digest.text(if function == of { "itself" } else { "a caller" });
                    Ok(())
                }
                false => self.function(digest, function, open),
            };
        }
        let bytes = section.data()?;
        digest.text("data").text(place.replace(of, "~"));
        digest.bytes(&value.to_le_bytes()).bytes(&size.to_le_bytes());
        // A section symbol stands for the whole section.
        digest.bytes(match symbol.kind() {
            SymbolKind::Section => bytes,
            _ => bytes.get(value as usize..(value + size) as usize).unwrap_or_default(),
        });
        Ok(())
    }

    /// Adds attributes to the digest, with symbol names in place of symbol indices. If `only` is given, adds only the attributes
    /// of that function.
    fn attributes(&self, digest: &mut Digest, mut bytes: &[u8], of: &str, only: Option<&str>) -> object::Result<()> {
        while let [format, attribute, low, high, rest @ ..] = bytes {
            let length = match *format {
                SIZED => u16::from_le_bytes([*low, *high]).into(),
                _ => 0,
            };
            let (value, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            let count = match *attribute {
                EXTERNS => value.len() / 4,
                _ => usize::from(OF_SYMBOL.contains(attribute) && value.len() >= 4),
            };
            let numbers = value[..4 * count].as_chunks().0.iter();
            let names = numbers.map(|word| self.name(u32::from_le_bytes(*word) as usize));
            let names = names.collect::<object::Result<Vec<String>>>()?;
            let ours = only.is_none_or(|only| names.first().is_some_and(|name| name == only));
            if ours {
                digest.bytes(&[*format, *attribute]);
                if *format != SIZED {
                    digest.bytes(&[*low, *high]);
                }
                for name in &names {
                    digest.text(name.replace(of, "~"));
                }
                digest.bytes(&value[4 * count..]);
            }
            bytes = after;
        }
        Ok(())
    }

    fn name(&self, number: usize) -> object::Result<String> {
        let symbol = self.elf.symbol_by_index(SymbolIndex(number))?;
        Ok(
            match symbol.section_index().filter(|_| symbol.kind() == SymbolKind::Section) {
                Some(index) => self.elf.section_by_index(index)?.name()?.into(),
                None => String::from_utf8_lossy(symbol.name_bytes()?).into_owned(),
            },
        )
    }
}
