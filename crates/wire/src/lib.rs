//! The only translation between `ag-core` and the messages of `ag-proto`.

pub mod answer;
pub mod request;
pub mod storage;
pub mod version;
