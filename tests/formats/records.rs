//! Records byte by byte, from offsets written down here and not read from the library's table.

use half::bf16;
use ulplab::formats::{Codec, PAGE, RECORDS, codec};

use super::oracle::{Random, nearest, table};

/// More than one page, and the second not full.
const TOKENS: usize = 70;

/// What a token's channels are stored as, without the place: codes and scales, by plain f64 arithmetic and search.
struct Quantized {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

fn amax(block: &[f32]) -> f64 {
    block.iter().fold(0.0, |amax, x| f64::from(x.abs()).max(amax))
}

/// Smallest exponent `e` with `ratio <= 2^e`.
fn ceil_exponent(ratio: f64) -> i32 {
    (-200..200).find(|e| ratio <= 2f64.powi(*e)).unwrap()
}

fn bytes_of(element: &'static str, block: &[f32], scale: f64) -> Vec<u8> {
    let codes: Vec<u8> = block.iter().map(|x| nearest(element, f64::from(*x) / scale)).collect();
    if element == "e2m1" {
        codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect()
    } else {
        codes
    }
}

/// Power-of-two scales, the exponent chosen by `exponent(amax)`.
fn powers(element: &'static str, x: &[f32], size: usize, exponent: impl Fn(f64) -> i32) -> Quantized {
    let mut out = Quantized {
        codes: Vec::new(),
        scales: Vec::new(),
    };
    for block in x.chunks(size) {
        let exponent = exponent(amax(block));
        out.scales.push(u8::try_from(exponent + 127).unwrap());
        out.codes.extend(bytes_of(element, block, 2f64.powi(exponent)));
    }
    out
}

/// FP4 with E4M3 scales of at least `floor`; `quotient(x, scale)` in f32.
fn fp4(x: &[f32], floor: f32, quotient: impl Fn(f32, f32) -> f32) -> Quantized {
    let mut out = Quantized {
        codes: Vec::new(),
        scales: Vec::new(),
    };
    for block in x.chunks(16) {
        let code = nearest("e4m3", f64::from((amax(block) as f32 * (1.0 / 6.0)).max(floor)));
        out.scales.push(code);
        let scale = table("e4m3")[usize::from(code)];
        let quotients: Vec<f32> = block.iter().map(|x| quotient(*x, scale)).collect();
        out.codes.extend(bytes_of("e2m1", &quotients, 1.0));
    }
    out
}

fn rope(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
}

/// Pages of `stride` bytes, where `place` tells what goes to which offset for a token in some slot.
fn pages(x: &[f32], dim: usize, stride: usize, place: impl Fn(usize, &[f32]) -> Vec<(usize, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = vec![0; (x.len() / dim).div_ceil(64) * stride];
    for (token, x) in x.chunks(dim).enumerate() {
        let x: Vec<f32> = x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        for (offset, part) in place(token % 64, &x) {
            let start = token / 64 * stride + offset;
            bytes[start..start + part.len()].copy_from_slice(&part);
        }
    }
    bytes
}

/// The values have more bits than bf16, so that rounding to bf16 first shows. Token 5 is so small that floors and
/// underflow of scales show, token 6 is zero, token 7 has negative zeros.
fn tokens(dim: usize) -> Vec<f32> {
    let mut x = Random(10).values(TOKENS * dim);
    x[5 * dim..6 * dim].iter_mut().for_each(|x| *x *= 2f32.powi(-18));
    x[6 * dim..7 * dim].fill(0.0);
    x[7 * dim..8 * dim].iter_mut().step_by(3).for_each(|x| *x = -0.0);
    x
}

fn check(name: &str, dim: usize, stride: usize, place: impl Fn(usize, &[f32]) -> Vec<(usize, Vec<u8>)>) {
    let x = tokens(dim);
    let want = pages(&x, dim, stride, place);
    let codec = codec(name).unwrap();
    let encoded = codec.encode(&x, dim);
    assert_eq!(encoded.parts[0].shape, [2, stride], "{name}");
    let got = encoded.part("pages");
    let wrong = (0..want.len()).find(|index| got[*index] != want[*index]);
    if let Some(index) = wrong {
        panic!("{name}: byte {index} is {:#x}, not {:#x}", got[index], want[index]);
    }
    caught(name, &*codec, &x, dim);
}

/// Decoding notices what goes wrong in pages: nibbles swapped, a scale off by one, a region shifted.
fn caught(name: &str, codec: &dyn Codec, x: &[f32], dim: usize) {
    let encoded = codec.encode(x, dim);
    let decode = |encoded: &ulplab::formats::Encoded| {
        let mut out = vec![0.0; x.len()];
        codec.decode(encoded, &mut out);
        out
    };
    let right = decode(&encoded);
    let mut swapped = encoded.clone();
    swapped.parts[0]
        .bytes
        .iter_mut()
        .for_each(|byte| *byte = byte.rotate_left(4));
    assert!(decode(&swapped) != right, "{name}: swapped nibbles");
    let mut shifted = encoded.clone();
    shifted.parts[0].bytes.rotate_right(1);
    assert!(decode(&shifted) != right, "{name}: a region one byte off");
}

#[test]
fn v4_fp8() {
    let scale = |amax: f64| ceil_exponent(amax.max(f64::from(1e-4f32)) / 448.0);
    check("v4_fp8", 512, 37440, |slot, x| {
        let nope = powers("e4m3", &x[..448], 64, scale);
        vec![
            (576 * slot, nope.codes),
            (576 * slot + 448, rope(&x[448..])),
            (576 * 64 + 8 * slot, nope.scales), // 7, and a zero
        ]
    });
}

#[test]
fn v4_nvfp4() {
    check("v4_nvfp4", 512, 64 * 384, |slot, x| {
        let nope = fp4(&x[..448], 0.0, |x, scale| x * (1.0 / scale).min(f32::MAX));
        vec![
            (352 * slot, nope.codes),
            (352 * slot + 224, rope(&x[448..])),
            (352 * 64 + 32 * slot, nope.scales), // 28, and 4 zeros
        ]
    });
}

#[test]
fn v4_mxfp4() {
    let scale = |amax: f64| {
        if amax == 0.0 {
            -127
        } else {
            ((amax / 6.0).log2() + 0.5).floor() as i32
        }
    };
    check("v4_mxfp4", 512, 64 * 368, |slot, x| {
        let nope = powers("e2m1", &x[..448], 32, scale);
        vec![
            (368 * slot, nope.codes),
            (368 * slot + 224, nope.scales),
            (368 * slot + 240, rope(&x[448..])),
        ]
    });
}

#[test]
fn v41_mxfp8() {
    let scale = |amax: f64| ceil_exponent((amax / 448.0).max(1e-4));
    check("v41_mxfp8", 512, 64 * 528, |slot, x| {
        let kv = powers("e4m3", x, 32, scale);
        vec![(512 * slot, kv.codes), (512 * 64 + 16 * slot, kv.scales)]
    });
}

#[test]
fn v41_fp4() {
    check("v41_fp4", 512, 64 * 288, |slot, x| {
        let kv = fp4(x, 2f32.powi(-9), |x, scale| x / scale + 0.0);
        vec![(256 * slot, kv.codes), (256 * 64 + 32 * slot, kv.scales)]
    });
}

#[test]
fn v32_fp8() {
    check("v32_fp8", 512, 64 * 656, |slot, x| {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for tile in x[..448].chunks(128) {
            let scale = (amax(tile) as f32 / 448.0).max(f32::MIN_POSITIVE);
            scales.extend(scale.to_le_bytes());
            let quotients = tile.iter().map(|x| nearest("e4m3", f64::from(x / scale)));
            codes.extend(quotients);
        }
        // The last tile has 64 channels of DeepSeek-V4 and 64 zeros.
        codes.extend([0; 64]);
        assert_eq!((codes.len(), scales.len()), (512, 16));
        vec![
            (656 * slot, codes),
            (656 * slot + 512, scales),
            (656 * slot + 528, rope(&x[448..])),
        ]
    });
}

#[test]
fn v4_bf16() {
    check("v4_bf16", 512, 65536, |slot, x| vec![(1024 * slot, rope(x))]);
}

#[test]
fn index_fp8() {
    check("index_fp8", 128, 64 * 132, |slot, x| {
        let exponent = ceil_exponent(amax(x).max(f64::from(1e-4f32)) / 448.0);
        let scale = 2f32.powi(exponent);
        vec![
            (128 * slot, bytes_of("e4m3", x, scale.into())),
            (128 * 64 + 4 * slot, scale.to_le_bytes().to_vec()),
        ]
    });
}

#[test]
fn index_mxfp4() {
    let scale = |amax: f64| ceil_exponent((amax / 6.0).max(2f64.powi(-126)));
    check("index_mxfp4", 128, 64 * 68, |slot, x| {
        let key = powers("e2m1", x, 32, scale);
        vec![(64 * slot, key.codes), (64 * 64 + 4 * slot, key.scales)]
    });
}

/// One token by hand, to the last byte: what a hexdump of a v4_fp8 page should show.
#[test]
fn a_token_of_v4_fp8_by_hand() {
    let mut x = vec![0.0; 512];
    x[0] = 448.0; // block 0: scale 1
    x[1] = -17.0; // between 16 and 18: a tie, to the even 16
    x[64] = 449.0; // rounds to 448 in bf16: without that, block 1 would have scale 2
    x[128] = 450.0; // block 2: scale 2, 225 is between 224 and 240
    x[447] = 1e-5; // block 6: amax counts as 1e-4, scale 2^-22
    x[448] = 1.0;
    x[511] = -2.0;
    let encoded = codec("v4_fp8").unwrap().encode(&x, 512);
    let page = encoded.part("pages");
    assert_eq!(page.len(), 37440);
    let mut want = vec![0; 37440];
    want[0] = 0x7e;
    want[1] = 0x80 | 0x58;
    want[64] = 0x7e;
    want[128] = 0x76;
    want[447] = 0x62; // 1e-5·2^22 = 41.9: nearest is 40 = 2^5·1.25
    want[448..450].copy_from_slice(&[0x80, 0x3f]);
    want[574..576].copy_from_slice(&[0x00, 0xc0]);
    want[36864..36872].copy_from_slice(&[127, 127, 128, 105, 105, 105, 105, 0]);
    let wrong: Vec<_> = (0..want.len())
        .filter(|i| page[*i] != want[*i])
        .map(|i| (i, page[i], want[i]))
        .collect();
    assert!(wrong.is_empty(), "(byte, found, expected): {wrong:?}");
    let mut out = vec![0.0; 512];
    codec("v4_fp8").unwrap().decode(&encoded, &mut out);
    let got = [out[0], out[1], out[64], out[128], out[447], out[448], out[511]];
    assert_eq!(got, [448.0, -16.0, 448.0, 448.0, 40.0 * 2f32.powi(-22), 1.0, -2.0]);
}

#[test]
fn one_more_in_a_power_of_two_scale_doubles_its_block() {
    let x = tokens(512);
    let codec = codec("v4_fp8").unwrap();
    let mut encoded = codec.encode(&x, 512);
    let (mut right, mut wrong) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    codec.decode(&encoded, &mut right);
    // Token 66 is slot 2 of page 1; its block 3 has channels 192 to 255.
    encoded.parts[0].bytes[37440 + 36864 + 8 * 2 + 3] += 1;
    codec.decode(&encoded, &mut wrong);
    for (index, (right, wrong)) in right.iter().zip(&wrong).enumerate() {
        let doubled = index / 512 == 66 && (192..256).contains(&(index % 512));
        assert_eq!(*wrong, if doubled { 2.0 * right } else { *right }, "{index}");
    }
}

#[test]
fn padding_is_neither_written_nor_read() {
    for record in RECORDS {
        let codec = codec(record.name).unwrap();
        let x = tokens(record.dim);
        let mut encoded = codec.encode(&x, record.dim);
        let stride = record.page_stride(PAGE);
        let (mut right, mut again) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        codec.decode(&encoded, &mut right);
        let bytes = &mut encoded.parts[0].bytes;
        // Tokens beyond the last, and what follows the last token of the first page.
        let unused = (record.bytes * PAGE..stride).chain(stride + record.regions[0] * (TOKENS - PAGE)..);
        for index in unused.take_while(|index| *index < stride + record.regions[0] * PAGE) {
            assert_eq!(bytes[index], 0, "{} byte {index}", record.name);
            bytes[index] = 0xff;
        }
        codec.decode(&encoded, &mut again);
        assert_eq!(right, again, "{}", record.name);
    }
}

#[test]
fn sizes_are_those_of_the_kernels() {
    let sizes: Vec<_> = RECORDS
        .iter()
        .map(|r| (r.name, r.dim, r.bytes, r.page_stride(PAGE)))
        .collect();
    let want = [
        ("v4_fp8", 512, 584, 37440),
        ("v4_nvfp4", 512, 384, 24576),
        ("v4_mxfp4", 512, 368, 23552),
        ("v41_mxfp8", 512, 528, 33792),
        ("v41_fp4", 512, 288, 18432),
        ("v32_fp8", 512, 656, 41984),
        ("v4_bf16", 512, 1024, 65536),
        ("index_fp8", 128, 132, 8448),
        ("index_mxfp4", 128, 68, 4352),
    ];
    assert_eq!(sizes, want);
    // FlashMLA and vLLM pad a page of V4 to a multiple of 576 also at other sizes.
    assert_eq!(RECORDS[0].page_stride(1), 1152);
    assert_eq!(RECORDS[0].page_stride(256), 149_760);
}
