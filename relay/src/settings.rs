//! The SETTINGS of one side, as far as they bind the frames of the other.
//!
//! What a side announces is in force for certain once the other side's acknowledgement passed.
//! Between the two, the sender may or may not have taken notice, so limits are then the wider of
//! both; windows change with the acknowledgement, because its place among the DATA says which
//! bytes were sent under which value.

use std::collections::VecDeque;

use crate::violation::Breach;
use crate::window::DEFAULT_WINDOW;

/// Announcements that may wait for their acknowledgement.
const MAX_PENDING: usize = 64;

const HEADER_TABLE_SIZE: u16 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

#[derive(Clone, Copy, Debug)]
struct Values {
    header_table: u32,
    initial_window: u32,
    frame: u32,
}

#[derive(Debug)]
pub(crate) struct Settings {
    in_force: Values,
    pending: VecDeque<Values>,
    frame_limit: u32,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let in_force = Values {
            header_table: 4_096,
            initial_window: DEFAULT_WINDOW,
            frame: 16_384,
        };
        Self {
            in_force,
            pending: VecDeque::new(),
            frame_limit: in_force.frame,
        }
    }
}

impl Settings {
    /// The side's SETTINGS frame, whose length is a multiple of six.
    pub(crate) fn announce(&mut self, payload: &[u8]) -> Result<(), Breach> {
        if self.pending.len() == MAX_PENDING {
            return Err(Breach::TooMany {
                what: "SETTINGS without acknowledgement",
                limit: MAX_PENDING,
            });
        }
        let mut values = *self.pending.back().unwrap_or(&self.in_force);
        for entry in payload.chunks_exact(6) {
            let id = u16::from_be_bytes([entry[0], entry[1]]);
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            match id {
                HEADER_TABLE_SIZE => values.header_table = value,
                INITIAL_WINDOW_SIZE if value <= 0x7fff_ffff => values.initial_window = value,
                MAX_FRAME_SIZE if (16_384..=16_777_215).contains(&value) => values.frame = value,
                INITIAL_WINDOW_SIZE | MAX_FRAME_SIZE => return Err(Breach::Malformed("SETTINGS")),
                _ => {}
            }
        }
        self.pending.push_back(values);
        self.widen();
        Ok(())
    }

    /// The other side's acknowledgement. Returns by how much the initial window changed.
    pub(crate) fn acknowledge(&mut self) -> Result<i64, Breach> {
        let values = self
            .pending
            .pop_front()
            .ok_or(Breach::OutOfPlace("acknowledgement of no SETTINGS"))?;
        let before = self.in_force.initial_window;
        self.in_force = values;
        self.widen();
        Ok(i64::from(values.initial_window) - i64::from(before))
    }

    pub(crate) fn initial_window(&self) -> u32 {
        self.in_force.initial_window
    }

    /// The largest dynamic table by the acknowledged announcement alone.
    pub(crate) fn acknowledged_table(&self) -> usize {
        self.in_force.header_table as usize
    }

    /// By how much a sender that has not acknowledged yet may exceed the initial window in force.
    pub(crate) fn window_ahead(&self) -> u32 {
        let pending = self.pending.iter().map(|values| values.initial_window);
        let in_force = self.in_force.initial_window;
        pending.fold(in_force, u32::max) - in_force
    }

    /// The longest payload that the other side may send.
    pub(crate) fn frame_limit(&self) -> usize {
        self.frame_limit as usize
    }

    /// The largest dynamic table that the other side's encoder may use.
    pub(crate) fn table_limit(&self) -> usize {
        let pending = self.pending.iter().map(|values| values.header_table);
        pending.fold(self.in_force.header_table, u32::max) as usize
    }

    fn widen(&mut self) {
        let pending = self.pending.iter().map(|values| values.frame);
        self.frame_limit = pending.fold(self.in_force.frame, u32::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SETTINGS with one value.
    fn one(id: u8, value: u32) -> [u8; 6] {
        let [a, b, c, d] = value.to_be_bytes();
        [0, id, a, b, c, d]
    }

    #[test]
    fn limits_are_the_wider_ones_until_the_acknowledgement() {
        let mut settings = Settings::default();
        settings.announce(&one(5, 20_000)).unwrap();
        settings.announce(&one(1, 100)).unwrap();
        assert_eq!(settings.frame_limit(), 20_000);
        assert_eq!(settings.table_limit(), 4_096);
        assert_eq!(settings.acknowledge(), Ok(0));
        assert_eq!(settings.table_limit(), 4_096);
        assert_eq!(settings.acknowledge(), Ok(0));
        assert_eq!(settings.table_limit(), 100);
        assert_eq!(settings.frame_limit(), 20_000);
        settings.announce(&one(5, 16_384)).unwrap();
        assert_eq!(settings.frame_limit(), 20_000);
        settings.acknowledge().unwrap();
        assert_eq!(settings.frame_limit(), 16_384);
    }

    #[test]
    fn windows_change_with_the_acknowledgement_by_the_difference() {
        let mut settings = Settings::default();
        settings.announce(&one(4, 100)).unwrap();
        settings.announce(&one(4, 65_536)).unwrap();
        assert_eq!(settings.initial_window(), 65_535);
        assert_eq!(settings.window_ahead(), 1);
        assert_eq!(settings.acknowledge(), Ok(-65_435));
        assert_eq!(settings.window_ahead(), 65_436);
        assert_eq!(settings.initial_window(), 100);
        assert_eq!(settings.acknowledge(), Ok(65_436));
    }

    #[test]
    fn last_of_two_equal_settings_wins_and_unknown_ones_are_left_alone() {
        let mut settings = Settings::default();
        let list = [one(4, 1), one(0xfa, 9), one(2, 7), one(4, 2)].concat();
        settings.announce(&list).unwrap();
        settings.acknowledge().unwrap();
        assert_eq!(settings.initial_window(), 2);
    }
}
