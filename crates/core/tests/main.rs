//! Tests of the state machine, through its public face.

