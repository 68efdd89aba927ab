use super::*;
use proptest::prelude::*;
use rustix::fs::SealFlags;
use std::net::Ipv4Addr;

fn ring() -> (Producer, Consumer) {
    let (producer, file) = Producer::create().unwrap();
    (producer, Consumer::open(file.as_fd()).unwrap())
}

impl Producer {
    /// Does what no sane producer does.
    pub(in super::super) fn spoil(&self) {
        self.shared.memory.store_u64(PRODUCED, 1).unwrap();
    }
}

fn train(bytes: &[u8], segment_size: usize) -> Train<'_> {
    Train {
        destination: Ipv4Addr::LOCALHOST.into(),
        source_port: 0xc123,
        traffic_class: 2,
        hop_limit: None,
        segment_size,
        bytes,
    }
}

/// Bytes that tell trains apart.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (seed * 31 + i * 7) as u8).collect()
}

#[test]
fn what_is_put_in_is_taken_out() {
    let (mut producer, mut consumer) = ring();
    let mut buffer = ReceiveBuffer::new();
    assert_eq!(consumer.take(&mut buffer), Ok(None));
    let sent = Train { hop_limit: Some(7), ..train(b"three packets", 5) };
    assert_eq!(producer.put(&sent), Ok(Put::Done));
    let record = Record { length: 13, segment_size: 5, source_port: 0xc123, traffic_class: 2, hop_limit: 7 };
    assert_eq!(consumer.take(&mut buffer), Ok(Some(record)));
    assert_eq!(&buffer.as_bytes()[..13], b"three packets");
    assert_eq!(consumer.take(&mut buffer), Ok(None));
}

#[test]
fn a_full_ring_refuses_until_there_is_room() {
    let (mut producer, mut consumer) = ring();
    let mut buffer = ReceiveBuffer::new();
    let full = bytes(1, MAX_TRAIN_BYTES);
    let put = |producer: &mut Producer| producer.put(&train(&full, 4096)).unwrap();
    let fitted = std::iter::from_fn(|| (put(&mut producer) == Put::Done).then_some(())).count();
    assert_eq!(fitted, CAPACITY / step(MAX_TRAIN_BYTES));
    assert_eq!(put(&mut producer), Put::Full);
    assert!(consumer.take(&mut buffer).unwrap().is_some());
    // It goes to the beginning, for it would not fit behind the last.
    assert_eq!(put(&mut producer), Put::Done);
    assert_eq!(put(&mut producer), Put::Full);
    let left = std::iter::from_fn(|| consumer.take(&mut buffer).unwrap()).count();
    assert_eq!(left, fitted);
}

#[test]
fn who_waits_is_told_once() {
    let (mut producer, mut consumer) = ring();
    let mut buffer = ReceiveBuffer::new();
    assert!(!consumer.wait());
    assert_eq!(producer.put(&train(b"a", 1)), Ok(Put::Tell));
    assert_eq!(producer.put(&train(b"b", 1)), Ok(Put::Done));
    assert!(consumer.wait(), "two are there");
    while consumer.take(&mut buffer).unwrap().is_some() {}
    assert!(!consumer.wait());
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    let create = || memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let unsealed = create();
    ftruncate(&unsealed, LENGTH as u64).unwrap();
    assert!(Consumer::open(unsealed.as_fd()).is_err());
    fcntl_add_seals(&unsealed, SealFlags::GROW | SealFlags::SEAL).unwrap();
    assert!(Consumer::open(unsealed.as_fd()).is_err());
    let short = create();
    ftruncate(&short, LENGTH as u64 - 1).unwrap();
    fcntl_add_seals(&short, SEALS).unwrap();
    assert!(Consumer::open(short.as_fd()).is_err());
    assert!(Consumer::open(std::fs::File::open("/dev/zero").unwrap().as_fd()).is_err());
}

#[test]
fn a_consumer_that_is_ahead_of_the_producer_is_not_believed() {
    let (mut producer, consumer) = ring();
    let full = bytes(1, MAX_TRAIN_BYTES);
    consumer.shared.memory.store_u64(CONSUMED, u64::MAX).unwrap();
    let puts: Vec<_> = (0..=CAPACITY / step(MAX_TRAIN_BYTES)).map(|_| producer.put(&train(&full, 4096))).collect();
    assert_eq!(puts.last(), Some(&Err(Broken)));
}

proptest! {
    /// Whatever the sizes, and whoever is how far ahead.
    #[test]
    fn trains_come_out_in_order_and_whole(
        steps in proptest::collection::vec((1..=MAX_TRAIN_BYTES, 1_usize..10, 0_usize..10), 1..60),
    ) {
        let (mut producer, mut consumer) = ring();
        let mut buffer = ReceiveBuffer::new();
        let (mut put, mut taken) = (Vec::new(), 0);
        let mut take = |put: &[Vec<u8>], most: usize| {
            for _ in 0..most {
                let Some(record) = consumer.take(&mut buffer).unwrap() else { break };
                assert_eq!(&buffer.as_bytes()[..record.length], &put[taken][..]);
                taken += 1;
            }
            taken
        };
        for (length, puts, takes) in steps {
            for _ in 0..puts {
                let bytes = bytes(put.len(), length);
                match producer.put(&train(&bytes, length.div_ceil(3))).unwrap() {
                    Put::Full => break,
                    _ => put.push(bytes),
                }
            }
            take(&put, takes);
        }
        prop_assert_eq!(take(&put, usize::MAX), put.len());
    }

    /// The producer may be anybody: nothing that it writes makes the consumer panic, read outside, or go on for ever.
    #[test]
    fn nothing_that_a_producer_writes_does_harm(
        produced in prop_oneof![any::<u64>(), (0..=CAPACITY as u64 / 64).prop_map(|records| records * 64)],
        start in prop_oneof![Just(0), (0..CAPACITY as u64 / 64).prop_map(|records| records * 64)],
        records in proptest::collection::vec((any::<u32>(), prop_oneof![Just(SKIP), 0_u32..70_000, any::<u32>()], 0_u32..5000), 0..40),
    ) {
        let (producer, mut consumer) = ring();
        consumer.consumed = start;
        let memory = &producer.shared.memory;
        memory.store_u64(PRODUCED, start.wrapping_add(produced)).unwrap();
        for (place, length, segment_size) in records {
            let at = RECORDS + place as usize % (CAPACITY / ALIGNMENT) * ALIGNMENT;
            memory.write(at, &length.to_ne_bytes()).unwrap();
            memory.write(at + 4, &segment_size.to_ne_bytes()).unwrap();
        }
        let mut buffer = ReceiveBuffer::new();
        let mut trains = 0;
        while let Ok(Some(record)) = consumer.take(&mut buffer) {
            prop_assert!((1..=MAX_TRAIN_BYTES).contains(&record.length) && record.segment_size > 0);
            trains += 1;
            prop_assert!(trains <= CAPACITY / ALIGNMENT);
        }
    }
}
