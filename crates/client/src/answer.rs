//! What a call gives.

use tonic::metadata::MetadataMap;

/// A place in the replicated log: `(term, log_index)`.
pub type Applied = (u64, u64);

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer<T> {
    /// The message.
    pub value: T,
    /// Where in the log the call was applied, or which place a read reflects. `None` where the service says neither.
    pub applied: Option<Applied>,
}

impl<T> Answer<T> {
    /// The message without its place.
    pub fn into_value(self) -> T {
        self.value
    }
}

/// Reads `ag-applied: <term>/<index>`.
pub(crate) fn applied(metadata: &MetadataMap) -> Option<Applied> {
    let (term, log_index) = metadata.get("ag-applied")?.to_str().ok()?.split_once('/')?;
    Some((term.parse().ok()?, log_index.parse().ok()?))
}

/// Reads `ag-leader: host:port`.
pub(crate) fn leader(metadata: &MetadataMap) -> Option<&str> {
    metadata.get("ag-leader")?.to_str().ok().filter(|addr| !addr.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(name, value.parse().unwrap());
        metadata
    }

    #[test]
    fn places_are_read_exactly_or_not_at_all() {
        assert_eq!(applied(&with("ag-applied", "3/18446744073709551615")), Some((3, u64::MAX)));
        for bad in ["", "3", "3/", "/3", "3/x", "-1/3", "3/18446744073709551616", "1/2/3"] {
            assert_eq!(applied(&with("ag-applied", bad)), None, "{bad}");
        }
        assert_eq!(applied(&MetadataMap::new()), None);
    }

    #[test]
    fn an_empty_leader_is_none() {
        assert_eq!(leader(&with("ag-leader", "h:1")), Some("h:1"));
        assert_eq!(leader(&with("ag-leader", "")), None);
    }
}
