//! Worker for the store of rocketmq-rust (bench/README.md, "Protocol").
//!
//!     rocketmq_rust_worker PATH what=put count=N body=BYTES [sync=1]
//!
//! Put messages into a new store, one call after the other, until the last one can be read by queue
//! and queried by key.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cheetah_string::CheetahString;
use dashmap::DashMap;
use rocketmq_model::codec::message_properties_to_string;
use rocketmq_model::common::config::TopicConfig;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_ext_broker_inner::MessageExtBrokerInner;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use rocketmq_store::{
    BrokerReadStore, BrokerStorePort, BrokerWriteStore, FlushDiskType,
    LocalFileMessageStore, MessageStoreConfig, PutMessageStatus, StoreRuntimeConfig,
};
use rocketmq_store_local::commit_log::append::micro_batch::MicroBatchPolicy;

const TOPIC: &str = "T";
const QUEUES: i64 = 4;
const POLL: Duration = Duration::from_millis(1);

struct Work {
    path: PathBuf,
    count: i64,
    body: Vec<u8>,
    sync: bool,
    key_base: i64,
}

impl Work {
    fn open(&self, owner: &RuntimeOwner) -> Result<LocalFileMessageStore> {
        let config = MessageStoreConfig {
            store_path_root_dir: self.path.to_string_lossy().to_string().into(),
            flush_disk_type: if self.sync {
                FlushDiskType::SyncFlush
            } else {
                FlushDiskType::AsyncFlush
            },
            ha_listen_port: 0,
            timer_wheel_enable: false,
            ..MessageStoreConfig::default()
        };
        let mut store = LocalFileMessageStore::new(
            Arc::new(config),
            MicroBatchPolicy::disabled(1).context("micro batch policy")?,
            Arc::new(StoreRuntimeConfig::default()),
            Arc::new(DashMap::<CheetahString, Arc<TopicConfig>>::new()),
            None,
            false,
            owner.root_context().component("bench"),
        )
        .context("new")?
        .context("timer store")?;
        store.wire_owned_root_dependencies().context("wire")?;
        Ok(store)
    }

    fn message(&self, topic: &CheetahString, at: i64) -> MessageExtBrokerInner {
        let mut message = Message::builder()
            .topic(topic.clone())
            .body(self.body.clone())
            .build_unchecked();
        message.set_tags(CheetahString::from_static_str("TagA"));
        message.set_keys(CheetahString::from(format!("k{}", self.key_base + at)));
        let mut inner = MessageExtBrokerInner {
            message_ext_inner: MessageExt {
                message,
                ..Default::default()
            },
            ..Default::default()
        };
        inner.message_ext_inner.set_queue_id((at % QUEUES) as i32);
        inner.properties_string = message_properties_to_string(inner.get_properties());
        inner
    }

    async fn put_all(&self, store: &mut LocalFileMessageStore) -> Result<()> {
        let topic = CheetahString::from_static_str(TOPIC);
        for at in 0..self.count {
            let result = store.put_message(self.message(&topic, at)).await;
            let status = result.put_message_status();
            ensure!(status == PutMessageStatus::PutOk, "put said {status:?}");
        }
        let last = self.count - 1;
        let queue_id = (last % QUEUES) as i32;
        while store.get_max_offset_in_queue(&topic, queue_id) <= last / QUEUES {
            std::thread::sleep(POLL);
        }
        let key = CheetahString::from(format!("k{}", self.key_base + last));
        loop {
            let found = store.query_message(&topic, &key, 1, 0, i64::MAX).await;
            if found.is_some_and(|result| !result.message_maped_list.is_empty()) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Run one unit of work; return (messages found by queue, seconds).
    fn unit(&mut self, owner: &RuntimeOwner) -> Result<(i64, f64)> {
        let _ = std::fs::remove_dir_all(&self.path);
        let mut store = self.open(owner)?;
        let done: Result<(i64, f64)> = owner.block_on(async {
            store.init().await.context("init")?;
            ensure!(store.load().await, "load() said no");
            store.start().await.context("start")?;
            let start = Instant::now();
            self.put_all(&mut store).await?;
            let seconds = start.elapsed().as_secs_f64();
            let topic = CheetahString::from_static_str(TOPIC);
            let total = (0..QUEUES)
                .map(|queue_id| store.get_max_offset_in_queue(&topic, queue_id as i32))
                .sum();
            store.shutdown_gracefully().await.context("shutdown")?;
            Ok((total, seconds))
        });
        drop(store);
        self.key_base += self.count;
        let _ = std::fs::remove_dir_all(&self.path);
        done
    }

    fn round(&mut self, owner: &RuntimeOwner, least: f64) -> Result<()> {
        let (mut seconds, mut units, mut answer) = (0.0, 0, 0);
        while units == 0 || seconds < least {
            let (found, took) = self.unit(owner)?;
            seconds += took;
            units += 1;
            answer = found;
        }
        let count = units * self.count;
        let bytes = count * self.body.len() as i64;
        println!(
            "{{\"count\": {count}, \"bytes\": {bytes}, \"seconds\": {seconds}, \
             \"units\": {units}, \"answer\": {answer}}}"
        );
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let path = PathBuf::from(words.next().context("PATH is missing")?);
    let options: HashMap<String, String> = words
        .filter_map(|word| {
            word.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect();
    let number = |name: &str, otherwise: i64| -> Result<i64> {
        Ok(match options.get(name) {
            Some(text) => text.parse()?,
            None => otherwise,
        })
    };
    let body_size = number("body", 1024)? as usize;
    let mut work = Work {
        path,
        count: number("count", 1000)?,
        body: (0..body_size).map(|i| (i * 37 + 11) as u8).collect(),
        sync: options.contains_key("sync"),
        key_base: 0,
    };
    let owner = RuntimeOwner::plan(RuntimeConfig::server_default("bench"))?.build()?;
    println!("{{\"ready\": true}}");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(least) = line.strip_prefix("round ") else {
            break;
        };
        work.round(&owner, least.trim().parse()?)?;
    }
    owner.shutdown_runtime_blocking()?;
    Ok(())
}
