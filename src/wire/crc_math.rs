//! The CRC-32 as arithmetic on polynomials over GF(2), for [`icrc`](super::icrc).
//!
//! A reflected register: bit 31 is the coefficient of x^0. To hash a byte 0 is to multiply by x^8. The difference between the
//! CRCs of two messages of one length is the CRC, without its ones at start and end, of the difference of the messages.

/// x^32 + x^26 + … + 1, reflected, without x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// `a` times x.
const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 { a >> 1 } else { (a >> 1) ^ POLYNOMIAL }
}

/// `a` divided by x: the polynomial has a constant term, so x has an inverse.
const fn over_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { ((a ^ POLYNOMIAL) << 1) | 1 }
}

/// `a` times `b`.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // All ones where the coefficient of x^bit in `a` is 1: no branch to mispredict.
        product ^= b & ((a << bit) as i32 >> 31) as u32;
        b = times_x(b);
        bit += 1;
    }
    product
}

const fn repeat(mut a: u32, n: usize, forth: bool) -> u32 {
    let mut i = 0;
    while i < n {
        a = if forth { times_x(a) } else { over_x(a) };
        i += 1;
    }
    a
}

/// `base` to the powers 0 to 255.
const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = times(table[i - 1], base);
        i += 1;
    }
    table
}

/// x^-8 to the powers 0 to 255: back over so many bytes.
static BACK_BYTES: [u32; 256] = powers(repeat(ONE, 8, false));
/// The same for 256 bytes a step.
static BACK_PAGES: [u32; 256] = powers(repeat(ONE, 8 * 256, false));

/// What a byte 0 to 255, followed by `BEHIND` more, does to the register.
struct Forth<const BEHIND: usize>;

impl<const BEHIND: usize> Forth<BEHIND> {
    const FIRST: [u32; 256] = Self::table(BEHIND + 2);
    const SECOND: [u32; 256] = Self::table(BEHIND + 1);

    const fn table(bytes: usize) -> [u32; 256] {
        each_byte_times(repeat(ONE, 8 * bytes, true))
    }
}

/// Each value of a byte times `factor`.
const fn each_byte_times(factor: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = times(i as u32, factor);
        i += 1;
    }
    table
}

/// Each value of a byte, four bytes back.
static BACK_FOUR: [u32; 256] = each_byte_times(repeat(ONE, 8 * 4, false));

/// What added to a CRC has the same effect as `difference` added to the fifth byte that it is continued over.
pub(super) fn before_fifth_byte(difference: u8) -> u32 {
    BACK_FOUR[usize::from(difference)]
}

/// How the CRC changes when two bytes, `BEHIND` bytes before the end, change by `difference` (big-endian).
pub(super) fn advance_u16<const BEHIND: usize>(difference: u16) -> u32 {
    let [first, second] = difference.to_be_bytes();
    let (firsts, seconds) = const { (&Forth::<BEHIND>::FIRST, &Forth::<BEHIND>::SECOND) };
    firsts[usize::from(first)] ^ seconds[usize::from(second)]
}

/// Which difference of two bytes, `behind` bytes before the end, changes the CRC by `difference`; `None` if none does, which is the
/// case for all but one in 65536 differences, or if `behind` is beyond 65533.
pub(super) fn rewind_u16(difference: u32, behind: usize) -> Option<u16> {
    let [high, low] = u16::try_from(behind + 2).ok()?.to_be_bytes();
    let back = times(BACK_BYTES[usize::from(low)], BACK_PAGES[usize::from(high)]);
    // The first byte was hashed into the low 8 bits of the register, the second would have been there 8 bits later.
    let register = times(difference, back);
    u16::try_from(register).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_and_division_by_x_undo_each_other() {
        for a in [ONE, 1, POLYNOMIAL, 0xdead_beef, u32::MAX] {
            assert_eq!(over_x(times_x(a)), a);
            assert_eq!(times(a, ONE), a);
            assert_eq!(times(ONE >> 1, a), times_x(a));
        }
    }

    #[test]
    fn differences_go_forth_and_back() {
        let mut a = [0x5a_u8; 300];
        for behind in [0, 1, 22, 255, 256, 290] {
            let base = crc32fast::hash(&a);
            for difference in [1_u16, 0x8000, 0x1234, 0xffff] {
                let at = a.len() - behind - 2;
                let change = |a: &mut [u8; 300]| {
                    a[at] ^= (difference >> 8) as u8;
                    a[at + 1] ^= difference as u8;
                };
                change(&mut a);
                let crc = crc32fast::hash(&a);
                change(&mut a);
                assert_eq!(rewind_u16(crc ^ base, behind), Some(difference));
                if behind == 22 {
                    assert_eq!(advance_u16::<22>(difference), crc ^ base);
                }
            }
        }
    }

    #[test]
    fn a_random_difference_is_seldom_that_of_an_id() {
        let mut seen = 0;
        let mut d = 1_u32;
        for _ in 0..1_000_000 {
            d ^= d << 13;
            d ^= d >> 17;
            d ^= d << 5;
            seen += u32::from(rewind_u16(d, 1060).is_some());
        }
        // One in 65536: about 15 of a million.
        assert!((5..40).contains(&seen), "{seen}");
        assert_eq!(rewind_u16(1, 65534), None);
    }
}
