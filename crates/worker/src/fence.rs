//! Whether the cluster compares the numbers of claims. A cluster below version 2 does not.

use std::sync::Once;

/// An answer to a call with a claim's number says whether the number was compared. Says so once if it was not.
pub(crate) fn told(fenced: bool) {
    static SAID: Once = Once::new();
    if !fenced {
        SAID.call_once(|| {
            tracing::warn!(
                "the cluster does not compare fencing tokens yet: it is below version 2. A claim that was handed out \
                 again to a worker of the same label is not told from this one's"
            );
        });
    }
}
