//! A digest of the machine code of each entry point of a cubin, without what does not run: names, line numbers, the order of entries.

use std::collections::{BTreeMap, BTreeSet};

use object::elf::{FileHeader64, SHN_UNDEF};
use object::read::elf::{FileHeader, Rela, SectionHeader, SectionTable, Sym, SymbolTable};
use object::{Endianness, SectionIndex, SymbolIndex};

use super::Digest;

type Elf = FileHeader64<Endianness>;

/// Sections of an entry point, by what stands before the dot and its name, that decide what it does.
const OF_ENTRY: [&str; 6] = [
    ".text",
    ".nv.info",
    SHARED,
    ".nv.constant0",
    ".nv.constant2",
    ".nv.local",
];
/// Static shared memory, in kilobytes: the file has no bytes of it, and the instructions have the addresses in it. The first kilobyte is
/// the system's; an entry point without more may lack the section.
const SHARED: &str = ".nv.shared";
const RESERVED: u64 = 1024;
/// Attributes of `.nv.info` whose first word is the number of a symbol, and the one that is a list of such numbers.
const OF_SYMBOL: [u8; 5] = [0x0a, 0x11, 0x12, 0x23, 0x2f];
const EXTERNS: u8 = 0x0f;
/// Format byte of the `.nv.info` attributes that have a length and a payload of that many bytes.
const SIZED: u8 = 4;

/// Computes a digest of each entry point of a cubin, by the name of the entry point.
///
/// # Errors
/// The bytes are not a 64-bit ELF file, end too early, or lack something that a cubin has; the error names what is wrong.
pub fn of(cubin: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let code = Code::new(cubin).map_err(|error| format!("the machine code cannot be read: {error}"))?;
    let sections = code.sections.iter();
    let names = sections.filter_map(|(name, _)| name.strip_prefix(".nv.info."));
    let digest = |name: &str| {
        let mut digest = Digest::default();
        let added = code.function(&mut digest, name, &mut BTreeSet::new());
        added.map_err(|error| format!("{name}: {error}"))?;
        Ok((name.into(), digest.finish()))
    };
    names.map(digest).collect()
}

struct Code<'a> {
    bytes: &'a [u8],
    sections: Vec<(String, SectionIndex)>,
    table: SectionTable<'a, Elf>,
    symbols: SymbolTable<'a, Elf>,
}

const LITTLE: Endianness = Endianness::Little;

impl<'a> Code<'a> {
    fn new(bytes: &'a [u8]) -> object::Result<Self> {
        let header = Elf::parse(bytes)?;
        let table = header.sections(LITTLE, bytes)?;
        let name = |(index, section)| {
            let name = String::from_utf8_lossy(table.section_name(LITTLE, section)?);
            Ok((name.into_owned(), index))
        };
        Ok(Self {
            bytes,
            sections: table.enumerate().map(name).collect::<object::Result<_>>()?,
            symbols: table.symbols(LITTLE, bytes, object::elf::SHT_SYMTAB)?,
            table,
        })
    }

    fn named(&self, name: &str) -> Option<SectionIndex> {
        let mut sections = self.sections.iter();
        Some(sections.find(|(other, _)| other == name)?.1)
    }

    /// The name of a section.
    fn place(&self, index: SectionIndex) -> &str {
        let found = self.sections.iter().find(|(_, other)| *other == index);
        found.map_or("", |(name, _)| name)
    }

    /// Adds everything that runs of a function: its sections, its registers and stack, and what it refers to. `open` has the functions
    /// that are being added: a function that calls itself is added once.
    fn function(&self, digest: &mut Digest, name: &str, open: &mut BTreeSet<String>) -> object::Result<()> {
        open.insert(name.into());
        for part in OF_ENTRY {
            let prefix = format!("{part}.");
            let Some(index) = self.named(&format!("{prefix}{name}")) else {
                if part == SHARED {
                    digest.text(&prefix).count(RESERVED as usize);
                }
                continue;
            };
            let section = self.table.section(index)?;
            let bytes = section.data(LITTLE, self.bytes)?;
            let (size, align) = (section.sh_size(LITTLE), section.sh_addralign(LITTLE));
            // Kernels that are compiled together share the largest alignment, by which sizes are rounded up.
            if part == SHARED {
                digest.text(&prefix).count(size.next_multiple_of(RESERVED) as usize);
                continue;
            }
            digest.text(&prefix).count(size as usize).count(align as usize);
            match part {
                ".nv.info" => self.attributes(digest, bytes, name, None)?,
                // The upper byte of `sh_info` is the register count. The lower bytes are a symbol index, which is left out.
                ".text" => drop(digest.count((section.sh_info(LITTLE) >> 24) as usize).bytes(bytes)),
                _ => drop(digest.bytes(bytes)),
            }
        }
        if let Some(index) = self.named(".nv.info") {
            let bytes = self.table.section(index)?.data(LITTLE, self.bytes)?;
            self.attributes(digest, bytes, name, Some(name))?;
        }
        for prefix in [".rela.text.", ".rel.text."] {
            let Some(index) = self.named(&format!("{prefix}{name}")) else {
                continue;
            };
            let section = self.table.section(index)?;
            if let Some((relocations, _)) = section.rela(LITTLE, self.bytes)? {
                for relocation in relocations {
                    digest.bytes(&relocation.r_offset(LITTLE).to_le_bytes());
                    digest.bytes(&relocation.r_addend(LITTLE).to_le_bytes());
                    digest.count(relocation.r_type(LITTLE, false) as usize);
                    self.symbol(digest, relocation.r_sym(LITTLE, false) as usize, name, open)?;
                }
            } else if let Some((relocations, _)) = section.rel(LITTLE, self.bytes)? {
                use object::read::elf::Rel;
                for relocation in relocations {
                    digest.bytes(&relocation.r_offset(LITTLE).to_le_bytes());
                    digest.count(relocation.r_type(LITTLE) as usize);
                    self.symbol(digest, relocation.r_sym(LITTLE) as usize, name, open)?;
                }
            }
        }
        Ok(())
    }

    /// Adds what a symbol stands for: the content of a constant or of memory, the code of a function, or its name, if it is none of ours.
    fn symbol(&self, digest: &mut Digest, number: usize, of: &str, open: &mut BTreeSet<String>) -> object::Result<()> {
        let symbol = self.symbols.symbol(SymbolIndex(number))?;
        let section = symbol.st_shndx(LITTLE);
        if section == SHN_UNDEF || section >= object::elf::SHN_LORESERVE {
            let name = self.symbols.symbol_name(LITTLE, symbol)?;
            digest.text("outside").text(String::from_utf8_lossy(name));
            return Ok(());
        }
        let index = SectionIndex(usize::from(section));
        let place = self.place(index);
        if let Some(function) = place.strip_prefix(".text.") {
            digest.text("function").bytes(&symbol.st_value(LITTLE).to_le_bytes());
            return match open.contains(function) {
                true => {
                    digest.text(if function == of { "itself" } else { "a caller" });
                    Ok(())
                }
                false => self.function(digest, function, open),
            };
        }
        let section = self.table.section(index)?;
        let bytes = section.data(LITTLE, self.bytes)?;
        let (value, size) = (symbol.st_value(LITTLE), symbol.st_size(LITTLE));
        digest.text("data").text(place.replace(of, "~"));
        digest.bytes(&value.to_le_bytes()).bytes(&size.to_le_bytes());
        // A symbol of a section stands for all of it.
        digest.bytes(match symbol.st_type() {
            object::elf::STT_SECTION => bytes,
            _ => bytes.get(value as usize..(value + size) as usize).unwrap_or_default(),
        });
        Ok(())
    }

    /// Adds attributes, where numbers of symbols are replaced by what they are called; `only` those of a function.
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
        let symbol = self.symbols.symbol(SymbolIndex(number))?;
        Ok(match symbol.st_type() {
            object::elf::STT_SECTION => self.place(SectionIndex(symbol.st_shndx(LITTLE).into())).into(),
            _ => String::from_utf8_lossy(self.symbols.symbol_name(LITTLE, symbol)?).into_owned(),
        })
    }
}
