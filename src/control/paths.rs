//! The service of paths: announcements to all workers, lists, and what happens as it happens.

use super::announcement::Announcement;
use super::convert::Wire;
use super::proto::paths_server::Paths;
use super::proto::watch_paths_response::News;
use super::server::{Pages, Services};
use super::socket::Admission;
use super::worker::{Request, WorkerHandle};
use super::{proto, view};
use crate::path::PathEventError;
use futures::future::join_all;
use futures::stream::{BoxStream, select_all};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::{Response, Status};

#[tonic::async_trait]
impl Paths for Services {
    async fn announce(
        &self,
        call: tonic::Request<proto::AnnounceRequest>,
    ) -> Result<Response<proto::AnnounceResponse>, Status> {
        if !call.extensions().get::<Admission>().is_some_and(|admission| admission.announces) {
            return Err(Status::permission_denied(
                "only root, the daemon's user and members of the group control.controllers may announce",
            ));
        }
        let read = Announcement::read(call.into_inner()).map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Response::new(announce(self.overview.workers(), read).await?))
    }

    type ListPathsStream = Pages<proto::ListPathsResponse>;

    async fn list_paths(
        &self,
        _: tonic::Request<proto::ListPathsRequest>,
    ) -> Result<Response<Self::ListPathsStream>, Status> {
        let pages = self.pages(
            |from, reply| Request::Paths { from, reply },
            |entries: Vec<view::Path>| proto::ListPathsResponse { paths: entries.to_wire() },
        );
        Ok(Response::new(pages))
    }

    type WatchPathsStream = BoxStream<'static, Result<proto::WatchPathsResponse, Status>>;

    async fn watch_paths(
        &self,
        _: tonic::Request<proto::WatchPathsRequest>,
    ) -> Result<Response<Self::WatchPathsStream>, Status> {
        // Subscribed before the paths are looked at: what happens in between is told twice rather than not at all.
        let news = select_all(self.overview.workers().iter().map(|worker| BroadcastStream::new(worker.path_news())));
        let now = self.pages(|from, reply| Request::Paths { from, reply }, |entries: Vec<view::Path>| entries);
        let tell = |news| proto::WatchPathsResponse { news: Some(news) };
        let now = futures::StreamExt::flat_map(now, move |page| {
            let entries: Vec<_> = match page {
                Ok(paths) => paths.into_iter().map(|path| Ok(tell(News::Path(path.to_wire())))).collect(),
                Err(status) => vec![Err(status)],
            };
            futures::stream::iter(entries)
        });
        let news = news.map(move |news| {
            Ok(tell(match news {
                Ok(news) => News::Event(news.to_wire()),
                Err(BroadcastStreamRecvError::Lagged(missed)) => News::Missed(missed),
            }))
        });
        Ok(Response::new(Box::pin(now.chain(news))))
    }
}

/// Tells all workers.
async fn announce(workers: &[WorkerHandle], announcement: Announcement) -> Result<proto::AnnounceResponse, Status> {
    let asked = workers.iter().map(|worker| worker.ask(|reply| Request::Announce { announcement, reply }));
    let (mut paths, mut known, mut failure) = (0, 0, None);
    for answer in join_all(asked).await {
        match answer {
            Ok(Ok(meant)) => paths += meant,
            Ok(Err(PathEventError::Stale { given, known: newest, .. })) if given == newest => known += 1,
            Ok(Err(error @ PathEventError::Stale { .. })) => {
                failure.get_or_insert(Status::failed_precondition(error.to_string()));
            }
            Ok(Err(error @ PathEventError::TooMany { .. })) => {
                failure.get_or_insert(Status::resource_exhausted(error.to_string()));
            }
            Err(error) => {
                failure.get_or_insert(Status::unavailable(format!("{error}; say it once more")));
            }
        }
    }
    match failure {
        Some(status) => Err(status),
        None => Ok(proto::AnnounceResponse { paths, was_known: known == workers.len() && known > 0 }),
    }
}
