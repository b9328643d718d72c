//! Tests of modules that `tests/loom.rs` compiles, too, where they would not run.

use crate::progress::Progress;
use crate::queue::Queue;

#[test]
fn a_buffer_is_past_only_when_every_earlier_one_is() {
    let progress = Progress::new();
    assert!(progress.is_past(0), "nothing is before it");
    progress.finished(3);
    progress.finished(2);
    assert!(!progress.is_past(1) && !progress.is_past(2));
    progress.finished(1);
    assert!(progress.is_past(3) && !progress.is_past(4));
}

#[test]
fn a_queue_is_bounded_first_in_first_out_and_empties_after_it_closed() {
    let queue = Queue::new(2);
    assert_eq!((queue.try_push(1), queue.try_push(2)), (Ok(()), Ok(())));
    assert_eq!(queue.try_push(3), Err(3));
    assert_eq!((queue.len(), queue.is_closed()), (2, false));
    queue.close();
    assert_eq!(queue.push(4), Err(4));
    assert_eq!(
        (queue.pop(), queue.pop(), queue.pop()),
        (Some(1), Some(2), None)
    );
}
