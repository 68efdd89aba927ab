//! The two ends of a connection, uroce's and rxe's, behind one face: a case is written once and runs both ways.

use crate::{bench::Bench, guest::Guest};
use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};
use uroce::verbs::{
    AccessFlags, AddressHandleAttributes, Buffers, CompletionQueue, Connection, Gid, GlobalRoute, MemoryRegion,
    MemoryWindow, MemoryWindowType, Mtu, PORT, ProtectionDomain, Psn, QKey, QpAttributeMask, QpAttributes,
    QpCapabilities, QpInitAttributes, QpState, QpType, Qpn, QueuePair, RKey, ReceiveWorkRequest, SendOperation,
    SendWorkRequest, Sge, SharedReceiveQueue, SrqAttributes, SrqInitAttributes, Target, WcOpcode, WcStatus,
    WindowBindInfo, WorkCompletion, inc_rkey,
};

/// How long a completion may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The Q_Key of all datagram queue pairs.
pub(crate) const QKEY: QKey = QKey(0x1122_3344);
/// Every right that a peer can have.
pub(crate) const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    SendImmediate(u32),
    SendInvalidate(u32),
    Write,
    WriteImmediate(u32),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

impl Operation {
    /// Whether it takes a receive of the peer's.
    pub(crate) fn is_received(self) -> bool {
        !matches!(self, Self::Write | Self::Read | Self::CompareSwap { .. } | Self::FetchAdd(_))
    }

    /// What its sender's completion is of.
    pub(crate) fn opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) => WcOpcode::Send,
            Self::Write | Self::WriteImmediate(_) => WcOpcode::Write,
            Self::Read => WcOpcode::Read,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd(_) => WcOpcode::FetchAdd,
        }
    }
}

/// A signalled send: local bytes, and where the peer's are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
}

/// A completion, of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    /// `enum ibv_wc_status`.
    pub(crate) status: u8,
    /// `enum ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) length: u32,
    /// Immediate data, or the key that was invalidated.
    pub(crate) word: Option<u32>,
    pub(crate) source: u32,
    /// `wc_flags`, where it is rxe's.
    pub(crate) flags: u32,
}

impl Done {
    pub(crate) fn expect(&self, status: WcStatus) {
        assert_eq!(self.status, status as u8, "{self:?}, not {status:?}");
    }
}

/// How the two ends are to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) qp_type: QpType,
    pub(crate) mtu: Mtu,
    /// The first PSN of either side.
    pub(crate) psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// Bytes of each side's region.
    pub(crate) memory: usize,
    /// What the queue pairs allow.
    pub(crate) qp_access: AccessFlags,
    /// What the regions allow.
    pub(crate) mr_access: AccessFlags,
    /// Whether each side takes its receives from a shared queue.
    pub(crate) srq: bool,
}

impl Setup {
    /// A reliable connection that waits so long (nine seconds) that an emulated guest on a busy machine is not thought silent.
    pub(crate) fn new(memory: usize) -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::Mtu1024,
            psn: 0xff_fff0,
            timeout: 21,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            memory,
            qp_access: ALL,
            mr_access: ALL,
            srq: false,
        }
    }
}

/// One end of a connection: a queue pair and a region.
pub(crate) trait End {
    fn name(&self) -> &'static str;
    fn qpn(&self) -> u32;
    fn rkey(&self) -> u32;
    /// The address of the region's first byte.
    fn address(&self) -> u64;
    /// Fills bytes with the pattern of a seed.
    fn fill(&self, offset: usize, length: usize, seed: u64);
    /// Where bytes first differ from the pattern of a seed.
    fn difference(&self, offset: usize, length: usize, seed: u64) -> Option<usize>;
    fn peek(&self, offset: usize) -> u64;
    fn poke(&self, offset: usize, value: u64);
    fn post(&self, work: &[Work]);
    /// Posts receives: number, offset, length.
    fn receive(&self, receives: &[(u64, usize, usize)]);
    /// Up to so many completions, as they come in so much time.
    fn poll(&self, count: usize, patience: Duration) -> Vec<Done>;
    /// Sends a datagram with immediate data.
    fn send_to(&self, gid: Gid, qpn: u32, work: &Work);
    fn set_membership(&self, group: Gid, joined: bool);
    /// Binds a memory window of type 2 to all of the region; returns its key.
    fn window(&self) -> u32;
    /// To the error state.
    fn fail(&self);
    /// `enum ibv_qp_state`.
    fn state(&self) -> u8;
    fn destroy(&self);

    /// Exactly so many completions.
    fn completions(&self, count: usize) -> Vec<Done> {
        let done = self.poll(count, PATIENCE);
        assert_eq!(done.len(), count, "completions of {}: {done:?}", self.name());
        done
    }

    fn completion(&self) -> Done {
        self.completions(1)[0]
    }

    /// Asserts that bytes are the pattern of a seed.
    fn check(&self, offset: usize, length: usize, seed: u64) {
        if let Some(at) = self.difference(offset, length, seed) {
            panic!("{}: of the {length} bytes at {offset}, byte {at} is wrong", self.name());
        }
    }
}

pub(crate) struct Uroce {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    mr: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    window: RefCell<Option<MemoryWindow>>,
}

pub(crate) struct Rxe {
    guest: Rc<RefCell<Guest>>,
    /// What the driver calls its queue pair, region and shared receive queue.
    number: usize,
    qpn: u32,
    address: u64,
    rkey: u32,
    gid_index: u8,
    srq: bool,
}

/// Two connected ends; datagram queue pairs are ready, but connected to nobody.
pub(crate) fn connect(bench: &Bench, setup: &Setup) -> (Uroce, Rxe) {
    let (uroce, rxe) = (Uroce::new(bench, setup), Rxe::new(bench, setup));
    if setup.qp_type == QpType::Ud {
        uroce.qp.open_datagrams(QKEY).unwrap();
        let number = rxe.number;
        let qkey = QKEY.0;
        rxe.ask_all([format!("init {number} 0 {qkey}"), format!("rtr {number}"), format!("rts {number} 0")]);
        return (uroce, rxe);
    }
    uroce
        .qp
        .connect(&Connection {
            path_mtu: setup.mtu,
            local_psn: Psn::new(setup.psn),
            remote_psn: Psn::new(setup.psn),
            access: setup.qp_access,
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            min_rnr_timer: setup.min_rnr_timer,
            ..Connection::new(Gid::from(bench.guest_address), Qpn::new(rxe.qpn))
        })
        .unwrap();
    let Setup { psn, timeout, retry_cnt, rnr_retry, min_rnr_timer, .. } = *setup;
    let (number, gid_index) = (rxe.number, rxe.gid_index);
    rxe.ask_all([
        format!("init {number} {} 0", setup.qp_access.bits()),
        format!(
            "rtr {number} {gid_index} {} {} {psn} {} {min_rnr_timer} 16",
            text(bench.device.gid()),
            uroce.qpn(),
            setup.mtu as u8
        ),
        format!("rts {number} {psn} {timeout} {retry_cnt} {rnr_retry} 16"),
    ]);
    (uroce, rxe)
}

/// A GID as inet_pton takes it.
fn text(gid: Gid) -> String {
    std::net::Ipv6Addr::from(gid.0).to_string()
}

/// The pattern of a seed: guest.c has the same.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |index: u64| {
        let z = seed
            .wrapping_mul(0x2545_f491_4f6c_dd1d)
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8) as u64).flat_map(word).collect();
    bytes.truncate(length);
    bytes
}

impl Uroce {
    fn new(bench: &Bench, setup: &Setup) -> Self {
        let context = bench.device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, 0, None).unwrap();
        let cap = QpCapabilities { max_send_wr: 256, max_recv_wr: 256, ..QpCapabilities::default() };
        let attr = SrqAttributes { max_wr: 256, ..SrqAttributes::default() };
        let srq =
            setup.srq.then(|| pd.create_srq(&SrqInitAttributes { attr, ..SrqInitAttributes::default() }).unwrap());
        let attributes =
            QpInitAttributes { cap, qp_type: setup.qp_type, srq: srq.as_ref(), ..QpInitAttributes::new(&cq) };
        let qp = pd.create_qp(&attributes).unwrap();
        let mr = pd.reg_mr(setup.memory, setup.mr_access | AccessFlags::MW_BIND).unwrap();
        Self { pd, cq, qp, mr, srq, window: RefCell::default() }
    }

    fn request<'a>(work: &Work, list: &'a [Sge], target: Target) -> SendWorkRequest<'a> {
        let (address, rkey) = (work.remote, RKey(work.rkey));
        let operation = match work.operation {
            Operation::Send => SendOperation::Send,
            Operation::SendImmediate(word) => SendOperation::SendWithImmediate(word),
            Operation::SendInvalidate(key) => SendOperation::SendWithInvalidate(RKey(key)),
            Operation::Write => SendOperation::Write { address, rkey },
            Operation::WriteImmediate(immediate) => SendOperation::WriteWithImmediate { address, rkey, immediate },
            Operation::Read => SendOperation::Read { address, rkey },
            Operation::CompareSwap { compare, swap } => SendOperation::CompareSwap { address, rkey, compare, swap },
            Operation::FetchAdd(add) => SendOperation::FetchAdd { address, rkey, add },
        };
        SendWorkRequest {
            wr_id: work.wr_id,
            operation,
            buffers: Buffers::List(list),
            signaled: true,
            solicited: false,
            fence: false,
            target,
        }
    }
}

impl End for Uroce {
    fn name(&self) -> &'static str {
        "uroce"
    }

    fn qpn(&self) -> u32 {
        self.qp.qp_num().value()
    }

    fn rkey(&self) -> u32 {
        self.mr.rkey().0
    }

    fn address(&self) -> u64 {
        self.mr.address()
    }

    fn fill(&self, offset: usize, length: usize, seed: u64) {
        self.mr.write(offset, &pattern(seed, length)).unwrap();
    }

    fn difference(&self, offset: usize, length: usize, seed: u64) -> Option<usize> {
        let mut bytes = vec![0; length];
        self.mr.read(offset, &mut bytes).unwrap();
        bytes.iter().zip(pattern(seed, length)).position(|(&byte, wanted)| byte != wanted)
    }

    fn peek(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.mr.read(offset, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn poke(&self, offset: usize, value: u64) {
        self.mr.write(offset, &value.to_ne_bytes()).unwrap();
    }

    fn post(&self, work: &[Work]) {
        for work in work {
            let list = [self.mr.sge(work.offset, work.length)];
            self.qp.post_send(&[Self::request(work, &list, Target::Peer)]).unwrap();
        }
    }

    fn receive(&self, receives: &[(u64, usize, usize)]) {
        for &(wr_id, offset, length) in receives {
            let request = ReceiveWorkRequest { wr_id, sg_list: &[self.mr.sge(offset, length)] };
            match &self.srq {
                Some(srq) => srq.post_recv(&[request]).unwrap(),
                None => self.qp.post_recv(&[request]).unwrap(),
            }
        }
    }

    fn poll(&self, count: usize, patience: Duration) -> Vec<Done> {
        let start = Instant::now();
        let mut done = Vec::new();
        let mut slot = [WorkCompletion::default()];
        while done.len() < count && start.elapsed() < patience {
            if self.cq.poll(&mut slot).unwrap() == 0 {
                // The guest needs the processor more than this does.
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let [wc] = slot;
            done.push(Done {
                wr_id: wc.wr_id,
                status: wc.status as u8,
                opcode: wc.opcode as u32,
                length: wc.byte_len,
                word: wc.imm_data.or(wc.invalidated_rkey.map(|key| key.0)),
                source: wc.src_qp.map_or(0, Qpn::value),
                flags: 0,
            });
        }
        done
    }

    fn send_to(&self, gid: Gid, qpn: u32, work: &Work) {
        let attributes = AddressHandleAttributes {
            grh: GlobalRoute { dgid: gid, hop_limit: 64, ..Default::default() },
            is_global: true,
            port_num: PORT,
            ..Default::default()
        };
        let target = self.pd.create_ah(&attributes).unwrap().target(Qpn::new(qpn), QKEY);
        self.qp.post_send(&[Self::request(work, &[self.mr.sge(work.offset, work.length)], target)]).unwrap();
    }

    fn set_membership(&self, group: Gid, joined: bool) {
        if joined { self.qp.attach_mcast(&group, 0) } else { self.qp.detach_mcast(&group, 0) }.unwrap();
    }

    fn window(&self) -> u32 {
        let window = self.pd.alloc_mw(MemoryWindowType::Type2).unwrap();
        let key = inc_rkey(window.rkey());
        let info = WindowBindInfo {
            mr: Some(&self.mr),
            address: self.mr.address(),
            length: self.mr.length() as u64,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        };
        let binding = window.binding(key, &info).unwrap();
        let request = SendWorkRequest {
            wr_id: 1,
            operation: SendOperation::BindMemoryWindow(binding),
            buffers: Buffers::List(&[]),
            signaled: true,
            solicited: false,
            fence: false,
            target: Target::Peer,
        };
        self.qp.post_send(&[request]).unwrap();
        self.completion().expect(WcStatus::Success);
        *self.window.borrow_mut() = Some(window);
        key.0
    }

    fn fail(&self) {
        let attributes = QpAttributes { qp_state: QpState::Err, ..QpAttributes::default() };
        self.qp.modify(&attributes, QpAttributeMask::STATE).unwrap();
    }

    fn state(&self) -> u8 {
        self.qp.state() as u8
    }

    fn destroy(&self) {
        self.qp.destroy().unwrap();
    }
}

impl Rxe {
    fn new(bench: &Bench, setup: &Setup) -> Self {
        let number = bench.next_number();
        let qp_type = match setup.qp_type {
            QpType::Uc => "uc",
            QpType::Ud => "ud",
            _ => "rc",
        };
        let mut lines =
            vec![format!("mr {number} {} {}", setup.memory, (setup.mr_access | AccessFlags::MW_BIND).bits())];
        let queue = if setup.srq {
            lines.push(format!("srq {number}"));
            number.to_string()
        } else {
            "-1".to_owned()
        };
        lines.push(format!("qp {number} {qp_type} {queue}"));
        let said = bench.guest.borrow_mut().ask_all(&lines);
        let (address, rkey) = said[0].split_once(' ').unwrap();
        Self {
            guest: bench.guest.clone(),
            number,
            qpn: said.last().unwrap().parse().unwrap(),
            address: address.parse().unwrap(),
            rkey: rkey.parse().unwrap(),
            gid_index: bench.gid_index,
            srq: setup.srq,
        }
    }

    fn ask(&self, line: String) -> String {
        self.guest.borrow_mut().ask(line)
    }

    fn ask_all(&self, lines: impl IntoIterator<Item = String>) -> Vec<String> {
        let lines: Vec<_> = lines.into_iter().collect();
        // Not so many at once that both ends wait for the other to read.
        lines.chunks(64).flat_map(|lines| self.guest.borrow_mut().ask_all(lines)).collect()
    }
}

impl End for Rxe {
    fn name(&self) -> &'static str {
        "rxe"
    }

    fn qpn(&self) -> u32 {
        self.qpn
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn fill(&self, offset: usize, length: usize, seed: u64) {
        self.ask(format!("fill {} {offset} {length} {seed}", self.number));
    }

    fn difference(&self, offset: usize, length: usize, seed: u64) -> Option<usize> {
        let said = self.ask(format!("check {} {offset} {length} {seed}", self.number));
        said.strip_prefix("differs ").map(|at| at.parse().unwrap())
    }

    fn peek(&self, offset: usize) -> u64 {
        self.ask(format!("peek {} {offset}", self.number)).parse().unwrap()
    }

    fn poke(&self, offset: usize, value: u64) {
        self.ask(format!("poke {} {offset} {value}", self.number));
    }

    fn post(&self, work: &[Work]) {
        let number = self.number;
        self.ask_all(work.iter().map(|work| {
            let (name, a, b) = match work.operation {
                Operation::Send => ("send", 0, 0),
                Operation::SendImmediate(word) => ("send_imm", u64::from(word), 0),
                Operation::SendInvalidate(key) => ("send_inv", u64::from(key), 0),
                Operation::Write => ("write", 0, 0),
                Operation::WriteImmediate(word) => ("write_imm", u64::from(word), 0),
                Operation::Read => ("read", 0, 0),
                Operation::CompareSwap { compare, swap } => ("cmp_swap", compare, swap),
                Operation::FetchAdd(add) => ("fetch_add", add, 0),
            };
            let Work { wr_id, offset, length, remote, rkey, .. } = work;
            format!("send {number} {wr_id} {name} {number} {offset} {length} {remote} {rkey} {a} {b} 0")
        }));
    }

    fn receive(&self, receives: &[(u64, usize, usize)]) {
        let number = self.number;
        let verb = if self.srq { "srq_recv" } else { "recv" };
        self.ask_all(
            receives
                .iter()
                .map(|(wr_id, offset, length)| format!("{verb} {number} {wr_id} {number} {offset} {length}")),
        );
    }

    fn poll(&self, count: usize, patience: Duration) -> Vec<Done> {
        const WITH_IMMEDIATE_OR_INVALIDATE: u32 = 1 << 1 | 1 << 3;
        let said = self.ask(format!("poll {} {count} {}", self.number, patience.as_millis()));
        let done = said.split_whitespace().map(|words| {
            let words: Vec<u64> = words.split(':').map(|word| word.parse().unwrap()).collect();
            Done {
                wr_id: words[0],
                status: words[1] as u8,
                opcode: words[2] as u32,
                length: words[3] as u32,
                word: (words[5] as u32 & WITH_IMMEDIATE_OR_INVALIDATE != 0).then_some(words[4] as u32),
                source: words[6] as u32,
                flags: words[5] as u32,
            }
        });
        done.collect()
    }

    fn send_to(&self, gid: Gid, qpn: u32, work: &Work) {
        let (number, gid_index, qkey, gid) = (self.number, self.gid_index, QKEY.0, text(gid));
        let Work { wr_id, offset, length, operation, .. } = work;
        let Operation::SendImmediate(word) = operation else { panic!("{operation:?} is no datagram of these tests") };
        self.ask(format!("datagram {number} {wr_id} {number} {offset} {length} {word} {gid_index} {gid} {qpn} {qkey}"));
    }

    fn set_membership(&self, group: Gid, joined: bool) {
        self.ask(format!("{} {} {}", if joined { "attach" } else { "detach" }, self.number, text(group)));
    }

    fn window(&self) -> u32 {
        self.ask(format!("window {0} {0}", self.number)).parse().unwrap()
    }

    fn fail(&self) {
        self.ask(format!("error {}", self.number));
    }

    fn state(&self) -> u8 {
        self.ask(format!("state {}", self.number)).parse().unwrap()
    }

    fn destroy(&self) {
        self.ask(format!("destroy {}", self.number));
    }
}
