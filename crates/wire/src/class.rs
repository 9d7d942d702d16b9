//! Size classes (docs/design/wire/frame.md).

/// The three lengths that a frame may have. Every frame is padded to one of them, so its length
/// tells an observer only the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SizeClass {
    /// 192 bytes: keepalives, reports, acknowledgements.
    Small,
    /// 576 bytes: routing updates, short messages.
    Medium,
    /// 1,440 bytes: data and handshakes. Fits paths with an MTU of 1,500 or 1,492 bytes over IPv4
    /// and IPv6.
    Full,
}

impl SizeClass {
    /// All classes, smallest first.
    pub const ALL: [SizeClass; 3] = [SizeClass::Small, SizeClass::Medium, SizeClass::Full];

    /// Length of the frame in bytes of UDP payload.
    pub const fn frame_len(self) -> usize {
        match self {
            SizeClass::Small => 192,
            SizeClass::Medium => 576,
            SizeClass::Full => 1_440,
        }
    }

    /// The class whose frames have exactly this length.
    pub const fn of_frame(len: usize) -> Option<SizeClass> {
        match len {
            192 => Some(SizeClass::Small),
            576 => Some(SizeClass::Medium),
            1_440 => Some(SizeClass::Full),
            _ => None,
        }
    }

    /// Bytes of link plaintext after the kind byte.
    pub const fn link_body_len(self) -> usize {
        self.frame_len() - crate::link::BODY_AT - crate::TAG_LEN
    }

    /// Bytes of cell payload after the routed header, for the two hosts to fill.
    pub const fn cell_len(self) -> usize {
        self.frame_len() - crate::link::CELL_AT - crate::TAG_LEN
    }

    /// Bytes of end-to-end plaintext, kind byte included.
    pub const fn edge_len(self) -> usize {
        self.cell_len() - crate::SessionHeader::LEN - crate::TAG_LEN
    }

    /// The smallest class whose link body holds `len` bytes.
    pub fn for_link_body(len: usize) -> Option<SizeClass> {
        Self::ALL.into_iter().find(|class| class.link_body_len() >= len)
    }

    /// The smallest class whose end-to-end plaintext holds `len` bytes, kind byte included.
    pub fn for_edge(len: usize) -> Option<SizeClass> {
        Self::ALL.into_iter().find(|class| class.edge_len() >= len)
    }
}
