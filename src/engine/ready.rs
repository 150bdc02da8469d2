//! The queue of those who have something to send: fair, each in it at most once, nothing allocated.

const END: u32 = u32::MAX;
const OUT: u32 = u32::MAX - 1;

/// A first-in first-out queue of slots.
#[derive(Debug)]
pub struct ReadyQueue {
    /// Neighbours by slot; `OUT` in `next` is "not queued".
    links: Vec<(u32, u32)>,
    head: u32,
    tail: u32,
}

impl Default for ReadyQueue {
    fn default() -> Self {
        Self { links: Vec::new(), head: END, tail: END }
    }
}

impl ReadyQueue {
    /// Makes room for slots below `slots`, so that [`ReadyQueue::push`] of one of them never allocates.
    pub fn reserve(&mut self, slots: usize) {
        if slots > self.links.len() {
            self.links.resize(slots, (END, OUT));
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.head == END
    }

    /// Queues `slot` at the end, unless it is in the queue already.
    pub fn push(&mut self, slot: u32) {
        self.reserve(slot as usize + 1);
        let Some(link) = self.links.get_mut(slot as usize) else { return };
        if link.1 != OUT {
            return;
        }
        *link = (self.tail, END);
        let tail = core::mem::replace(&mut self.tail, slot);
        match self.links.get_mut(tail as usize) {
            Some(tail) => tail.1 = slot,
            None => self.head = slot,
        }
    }

    /// The first.
    pub fn front(&self) -> Option<u32> {
        (self.head != END).then_some(self.head)
    }

    /// Takes the first.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.head;
        self.remove(slot).then_some(slot)
    }

    /// Takes `slot` out, wherever it stands; false if it was not queued.
    pub fn remove(&mut self, slot: u32) -> bool {
        let Some(link) = self.links.get_mut(slot as usize).filter(|l| l.1 != OUT) else { return false };
        let (prev, next) = core::mem::replace(link, (END, OUT));
        match self.links.get_mut(prev as usize) {
            Some(prev) => prev.1 = next,
            None => self.head = next,
        }
        match self.links.get_mut(next as usize) {
            Some(next) => next.0 = prev,
            None => self.tail = prev,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_only_once() {
        let mut q = ReadyQueue::default();
        for s in [4, 2, 9, 2, 4, 7] {
            q.push(s);
        }
        assert!(q.remove(9));
        assert!(!q.remove(9));
        assert!(!q.remove(1000));
        assert_eq!(q.pop(), Some(4));
        q.push(4);
        assert_eq!(std::iter::from_fn(|| q.pop()).collect::<Vec<_>>(), [2, 7, 4]);
        assert!(q.is_empty());
        q.push(7);
        assert!(q.remove(7));
        assert_eq!(q.pop(), None);
    }
}
