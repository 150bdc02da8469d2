//! Bytes that can be checked: every message of a run has its own content.

/// The content of message number `message` of queue pair number `qp`: eight-byte words of a counter stepped by an odd
/// constant (a Weyl sequence), so that any shift, swap, repetition or loss of bytes shows.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD_BYTES: usize = 8;
/// A prime above the largest depth.
const SLIDES: u64 = 8209;
const _: () = assert!(SLIDES > super::Plan::MAX_DEPTH as u64);

impl Pattern {
    /// The pattern of one message.
    pub fn of(qp: u32, message: u64) -> Self {
        Self((u64::from(qp) << 40 ^ message).wrapping_mul(0xd134_2543_de82_ef95) ^ STEP)
    }

    /// The rest of the pattern after `bytes`, a multiple of eight.
    pub fn after(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(STEP.wrapping_mul((bytes / WORD_BYTES) as u64)))
    }

    /// Where in one long pattern message number `message` begins, in bytes: not where the one [`Plan::MAX_DEPTH`] or fewer before
    /// it did, so that a message that did not arrive is not mistaken for what its slot held.
    ///
    /// [`Plan::MAX_DEPTH`]: super::Plan::MAX_DEPTH
    pub const fn slide(message: u64) -> u64 {
        message % SLIDES * WORD_BYTES as u64
    }

    /// The largest of them.
    pub const LONGEST_SLIDE: u64 = (SLIDES - 1) * WORD_BYTES as u64;

    fn words(self) -> impl Iterator<Item = u64> {
        (1..).map(move |index| {
            let w = self.0.wrapping_add(STEP.wrapping_mul(index));
            (w ^ (w >> 29)).to_le()
        })
    }

    /// Writes it over `bytes`.
    pub fn fill(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<WORD_BYTES>();
        let tail = self.after(words.len() * WORD_BYTES);
        for (word, want) in words.iter_mut().zip(self.words()) {
            *word = want.to_ne_bytes();
        }
        for (byte, want) in rest.iter_mut().zip(tail.words().flat_map(u64::to_ne_bytes)) {
            *byte = want;
        }
    }

    /// How many of `bytes` are not as [`Self::fill`] left them.
    pub fn count_wrong(self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
        // Without branches, so that several words are compared at a time.
        let different = words.iter().zip(self.words()).fold(0, |all, (w, want)| all | (u64::from_ne_bytes(*w) ^ want));
        let tail = self.after(words.len() * WORD_BYTES);
        let wrong = |bytes: &[u8], pattern: Self| {
            bytes.iter().zip(pattern.words().flat_map(u64::to_ne_bytes)).filter(|(a, b)| **a != *b).count() as u64
        };
        wrong(rest, tail) + if different == 0 { 0 } else { wrong(words.as_flattened(), self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_wrong_byte() {
        let mut b = vec![0; 1027];
        let p = Pattern::of(3, 99);
        p.fill(&mut b);
        assert_eq!(p.count_wrong(&b), 0);
        b[0] ^= 1;
        b[1026] ^= 0x80;
        assert_eq!(p.count_wrong(&b), 2);
    }

    #[test]
    fn goes_on_where_a_part_ended() {
        let p = Pattern::of(1, 2);
        let (mut whole, mut parts) = ([0; 40], [0; 40]);
        p.fill(&mut whole);
        p.fill(&mut parts[..16]);
        p.after(16).fill(&mut parts[16..]);
        assert_eq!(whole, parts);
    }

    #[test]
    fn messages_shifts_and_queue_pairs_differ() {
        let mut b = vec![0; 4096];
        Pattern::of(0, 7).fill(&mut b);
        // A byte of a word may agree by chance, and then does in many words; most do not.
        assert!(Pattern::of(0, 8).count_wrong(&b) > 2048);
        assert!(Pattern::of(1, 7).count_wrong(&b) > 2048);
        b.rotate_left(8);
        assert!(Pattern::of(0, 7).count_wrong(&b) > 2048);
    }
}
