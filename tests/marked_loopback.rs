//! DCQCN between two processes over loopback, on a network that marks 0.1 %, 1 % and 10 % of the packets: the rate of the
//! queue pair follows a model, written down here from the paper's equations in floating point, which is fed the instants
//! at which notifications came and bytes left. So the machine may be as slow as it likes.

mod support;

use std::{
    env,
    io::{BufRead, BufReader, Write, stdin},
    net::IpAddr,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{Side, send};
use uroce::{
    congestion::{
        Algorithm, Congestion, CongestionControl, CongestionEvent, DcqcnParameters, NotificationParameters, Rate,
    },
    link::{Fault, UdpLink},
    verbs::{Connection, Device, Instant, Psn, QpCapabilities, Qpn, RKey, SendOperation, WcStatus, WorkCompletion},
};

const MESSAGE: usize = 64 << 10;
const DEPTH: usize = 16;
const RUN: Duration = Duration::from_millis(400);
/// Below what loopback carries, so that every packet is paced.
const LINE: Rate = Rate::from_gbps(5);
/// Says to a process that it is the receiver.
const ROLE: &str = "UROCE_TEST_RECEIVER";

/// What a reaction point was told, when, and its rate right before and after.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    event: CongestionEvent,
    before: Rate,
    rate: Rate,
}

type Record = Arc<Mutex<Vec<Entry>>>;

/// DCQCN, recorded.
#[derive(Debug)]
struct Recorder(Record);

#[derive(Debug)]
struct Recorded(Box<dyn CongestionControl>, Record);

impl Algorithm for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn reacts_to_marks(&self) -> bool {
        true
    }

    fn start(&self, _line_rate: Rate) -> Box<dyn CongestionControl> {
        Box::new(Recorded(DcqcnParameters::PAPER.start(LINE), self.0.clone()))
    }
}

impl CongestionControl for Recorded {
    fn rate(&self) -> Rate {
        self.0.rate()
    }

    fn on_event(&mut self, at: Instant, event: CongestionEvent) {
        self.0.handle_timeout(at);
        let before = self.0.rate();
        self.0.on_event(at, event);
        self.1.lock().unwrap().push(Entry { at, event, before, rate: self.0.rate() });
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // The line rate is below the device's, so that this is asked for in any case.
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

/// The paper's reaction point in Gbit/s and seconds: its figure 7 and equations 1 to 4.
#[derive(Debug)]
struct Model {
    current: f64,
    target: f64,
    alpha: f64,
    alpha_since: Option<f64>,
    timer_since: Option<f64>,
    bytes: f64,
    timer_stage: u32,
    byte_stage: u32,
}

impl Model {
    const LINE: f64 = 5.0;
    const PERIOD: f64 = 55e-6;
    const BYTES: f64 = 10e6;
    const G: f64 = 1.0 / 256.0;

    fn new() -> Self {
        let (current, target, alpha) = (Self::LINE, Self::LINE, 1.0);
        Self { current, target, alpha, alpha_since: None, timer_since: None, bytes: 0.0, timer_stage: 0, byte_stage: 0 }
    }

    fn increase(&mut self) {
        if self.timer_stage.min(self.byte_stage) > 5 {
            self.target += 0.4 * f64::from(self.timer_stage.min(self.byte_stage) - 5);
        } else if self.timer_stage.max(self.byte_stage) >= 5 {
            self.target += 0.04;
        }
        self.target = self.target.min(Self::LINE);
        self.current = f64::midpoint(self.current, self.target);
    }

    fn advance(&mut self, now: f64) {
        while let Some(since) = self.timer_since.filter(|since| since + Self::PERIOD <= now) {
            self.timer_since = Some(since + Self::PERIOD);
            self.timer_stage += 1;
            self.increase();
        }
    }

    fn on_sent(&mut self, now: f64, bytes: f64) {
        self.advance(now);
        self.bytes += bytes;
        while self.timer_since.is_some() && self.bytes >= Self::BYTES {
            self.bytes -= Self::BYTES;
            self.byte_stage += 1;
            self.increase();
        }
    }

    fn on_notified(&mut self, now: f64) {
        self.advance(now);
        if let Some(since) = self.alpha_since {
            self.alpha *= (1.0 - Self::G).powf(((now - since) / Self::PERIOD).floor());
        }
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(1e-3);
        self.alpha += (1.0 - self.alpha) * Self::G;
        (self.alpha_since, self.timer_since) = (Some(now), Some(now));
        (self.bytes, self.timer_stage, self.byte_stage) = (0.0, 0, 0);
    }
}

/// The means over time of the recorded rate and of the model's, in Gbit/s; and by how much they differ at most.
fn compare(record: &[Entry]) -> (f64, f64) {
    let mut model = Model::new();
    let (mut recorded, mut modelled, mut time) = (0.0, 0.0, 0.0);
    for pair in record.windows(2) {
        let now = pair[0].at.as_nanos() as f64 * 1e-9;
        match pair[0].event {
            CongestionEvent::Sent { bytes } => model.on_sent(now, bytes as f64),
            CongestionEvent::Notified => model.on_notified(now),
            _ => {}
        }
        let span = (pair[1].at - pair[0].at).as_secs_f64();
        recorded += pair[0].rate.bps() as f64 * 1e-9 * span;
        modelled += model.current * span;
        time += span;
    }
    (recorded / time, modelled / time)
}

/// The receiver's process: it takes in WRITEs, and notifies.
fn receive() {
    let congestion = Congestion::new(DcqcnParameters::PAPER).with_notification(NotificationParameters::PAPER);
    let device = Device::builder().congestion(congestion).build().unwrap();
    let side = Side::new(&device, QpCapabilities::default(), MESSAGE);
    let (address, key) = (side.mr.address(), side.mr.rkey().0);
    println!("\nreceiver {} {} {address} {key}", device.address(), side.qp.qp_num().value());
    let mut lines = stdin().lines();
    let line = lines.next().unwrap().unwrap();
    let (peer, number) = line.split_once(' ').unwrap();
    let peer: IpAddr = peer.parse().unwrap();
    side.qp.connect(&connection(peer, Qpn::new(number.parse().unwrap()))).unwrap();
    println!("\nreceiver ready");
    // Until the sender is done.
    assert!(lines.next().is_none());
    println!("\nreceiver {}", device.counters().np_cnp_sent);
}

fn connection(peer: IpAddr, number: Qpn) -> Connection {
    let psn = Psn::new(1);
    // Half a second, and often: the machine may be busy.
    Connection { timeout: 17, retry_cnt: 7, local_psn: psn, remote_psn: psn, ..Connection::new(peer.into(), number) }
}

/// Sends through a network that marks, to a receiver of another process. Returns what the reaction point was told, and
/// how often the receiver notified.
fn send_marked(marks: &str) -> (Vec<Entry>, u64) {
    let test = "the_rate_over_a_loopback_that_marks_follows_the_model";
    let mut receiver = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut answer = || lines.find_map(|line| line.strip_prefix("receiver ").map(str::to_owned)).unwrap();
    let mut orders = receiver.stdin.take().unwrap();

    let record = Record::default();
    let wire = UdpLink::open_here(None).unwrap();
    let device = Device::builder()
        .link(Arc::new(Fault::new(wire, &marks.parse().unwrap(), 42)))
        .congestion(Congestion::new(Recorder(record.clone())))
        .build()
        .unwrap();
    let side = Side::new(&device, QpCapabilities::default(), MESSAGE);
    let introduction = answer();
    let mut words = introduction.split(' ');
    let mut word = || words.next().unwrap();
    let peer: IpAddr = word().parse().unwrap();
    let number = Qpn::new(word().parse().unwrap());
    let write = SendOperation::Write { address: word().parse().unwrap(), rkey: RKey(word().parse().unwrap()) };
    writeln!(orders, "{} {}", device.address(), side.qp.qp_num().value()).unwrap();
    side.qp.connect(&connection(peer, number)).unwrap();
    assert_eq!(answer(), "ready");

    let begin = std::time::Instant::now();
    let mut outstanding = 0;
    let mut completions = [WorkCompletion::default(); DEPTH];
    while begin.elapsed() < RUN || outstanding > 0 {
        while begin.elapsed() < RUN && outstanding < DEPTH {
            side.qp.post_send(&[send(0, write, &[side.mr.sge(0, MESSAGE)])]).unwrap();
            outstanding += 1;
        }
        let count = side.cq.poll(&mut completions).unwrap();
        assert!(completions[..count].iter().all(|completion| completion.status == WcStatus::Success));
        outstanding -= count;
    }
    drop(orders);
    let notifications = answer().parse().unwrap();
    assert!(receiver.wait().unwrap().success());
    let handled = device.counters().rp_cnp_handled;
    let record = record.lock().unwrap().clone();
    let told = record.iter().filter(|entry| entry.event == CongestionEvent::Notified).count() as u64;
    assert_eq!(told, handled);
    (record, notifications)
}

#[test]
fn the_rate_over_a_loopback_that_marks_follows_the_model() {
    if env::var_os(ROLE).is_some() {
        return receive();
    }
    let mut means = Vec::new();
    for marks in ["mark-ce 0.1%", "mark-ce 1%", "mark-ce 10%"] {
        let (record, notifications) = send_marked(marks);
        let handled = record.iter().filter(|entry| entry.event == CongestionEvent::Notified).count() as u64;
        assert!(handled > 0, "{marks}");
        // A datagram may find the receive buffer full.
        assert!(handled <= notifications && handled * 10 >= notifications * 9, "{handled} of {notifications} came");
        let (recorded, modelled) = compare(&record);
        eprintln!("{marks}: {handled} notifications, {recorded:.3} Gbit/s on average, {modelled:.3} by the model");
        assert!((recorded / modelled - 1.0).abs() < 0.1, "{marks}: {recorded} Gbit/s, {modelled} by the model");
        // The pacer never lets more pass than the rate, which only grows between two events; but for a train.
        let sent = record.iter().map(|entry| if let CongestionEvent::Sent { bytes } = entry.event { bytes } else { 0 });
        let sent = sent.sum::<u64>();
        let between = |pair: &[Entry]| pair[1].before.max(pair[0].rate).bytes_in(pair[1].at - pair[0].at);
        let allowed = record.windows(2).map(between).sum::<u64>();
        assert!(sent < allowed + allowed / 10 + 200_000, "{marks}: {sent} bytes, {allowed} by the rate");
        means.push(recorded);
    }
    assert!(means.is_sorted_by(|more, less| more > less), "more marks, less rate: {means:?}");
}
