"""The protocol under simulation: many schedules of events from one seed, every history checked.

One thread plays all workers. Each simulated process has the real app, the real SQLite store on a
common file, the real worker, beat and janitor; only threads, locks between processes and time are
replaced, so a seed decides in which order everything happens, which statement fails, which answer
is lost and where a process dies.

    python -m tests.simulator --seed 123 --verbose     replay one seed
    python -m tests.simulator --seeds 0-9999           look for a seed that fails
    python -m tests.simulator --schedules              the same in worlds with schedules
    python -m tests.simulator --glitches               the same in worlds with wrong clocks
    python -m tests.simulator --workflows              the same in worlds with workflows
    python -m tests.simulator.record                   find the seeds of the mutants again

- `world`       the file, the clock, the processes, and the loop that draws steps
- `process`     one process: its app, store and worker, from start to death
- `store`       the store, on connections that can fail in every way of `faults`
- `worker`      the worker, whose bodies run when the simulation says so
- `functions`   what users' functions do, and how their jobs may end
- `steps`       what can happen
- `log`         what the database writes down of every change
- `timetables`  worlds with schedules, and what people do to those
- `glitches`    worlds with wrong clocks, and what those may be believed
- `workflows`   worlds with runs of workflows, and two builds of their code
- `programs`    workflows that run what a seed draws, and their steps
- `records`     what must be true of runs: each effect once, each wake in time, each replay alike
- `invariants`  what must be true of every history
- `promises`    what limits, keys, debounce and hooks add to that
- `standoff`, `outages` worlds that end with what a seed seldom brings about
- `almanac`     what schedules owe, worked out with the `instants` of their triggers
- `mutants`     each guard of the protocol taken away: the simulator has to notice
- `tick_mutants`, `clock_mutants`, `workflow_mutants` the same for the guards of the tick, against
  wrong clocks, and for the guards of workflows
"""
