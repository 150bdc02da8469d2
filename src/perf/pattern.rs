//! Bytes that can be checked: every message of a run has its own content.

/// The content of message number `message` of queue pair number `qp`: eight-byte words of a counter stepped by an odd
/// constant (a Weyl sequence), so that any shift, swap, repetition or loss of bytes shows.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Pattern {
    /// The pattern of one message.
    pub fn of(qp: u32, message: u64) -> Self {
        Self((u64::from(qp) << 40 ^ message).wrapping_mul(0xd134_2543_de82_ef95) ^ STEP)
    }

    fn word(self, index: usize) -> [u8; 8] {
        let w = self.0.wrapping_add(STEP.wrapping_mul(index as u64 + 1));
        (w ^ (w >> 29)).to_le_bytes()
    }

    /// Writes it over `bytes`.
    pub fn fill(self, bytes: &mut [u8]) {
        for (i, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(i)[..chunk.len()]);
        }
    }

    /// How many of `bytes` are not as [`Self::fill`] left them.
    pub fn count_wrong(self, bytes: &[u8]) -> u64 {
        let mut wrong = 0;
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let want = self.word(i);
            if chunk != &want[..chunk.len()] {
                wrong += chunk.iter().zip(want).filter(|(a, b)| **a != *b).count() as u64;
            }
        }
        wrong
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
