"""One pipeline in a process: owned, started, paused, drained, tried again.

Here stands what happens around an epoch: who runs the pipeline, when, and what a failure means.
What an epoch is, and which task reads what, is the scheduler's; how records are written is the
sink's; what is shown of it all is monitoring's. Only spark/ calls Spark's JVM.

Which module decides what:

- what follows from a state, a request and an event: transitions (the table), asked by run_loop and
  query_runner through lifecycle
- that a failed pipeline is tried again: query_runner for the query (QueryRunner.run), initial_scan
  for the scan, both by failures.diagnose and RunMode.is_last_try; RunMode.failed for the rest, such
  as a failure to start; failures.delay_s says when
- that an epoch may become visible: epochs.writer (EpochWriter.write), which asks lease_holder, and
  epochs.audit (a broken promise stops the epoch, unless epoch.audit is log)
- that an epoch counts as committed: Spark's commit log; epochs.recorder sees and records it
- who owns the pipeline: lease_holder, by the rules of slackwater.state.lease; it also takes the
  lease of a process of the same process-id namespace that has died (owner_is_dead)
- what an operator or a signal desires: desired_state
- how long a long work still takes: progress
- whether it keeps up, and what is worrying: catch_up; when that is logged: alerts
- where a pipeline resumes: resume_point, with source and recovery
- what is put together from the settings: supervisor
"""
