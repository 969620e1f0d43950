package dispatchaudit.trace;

import java.util.List;

/** Which method of the broker gives which lines. docs/soak.md shows this table. */
final class HookTable {
    private static final String SERVICE = "org.apache.pulsar.broker.service.";
    private static final String PERSISTENT = SERVICE + "persistent.";
    private static final String SHARED = PERSISTENT + "PersistentDispatcherMultipleConsumers";
    private static final String KEY_SHARED = PERSISTENT + "PersistentStickyKeyDispatcherMultipleConsumers";
    private static final String SINGLE = SERVICE + "AbstractDispatcherSingleActiveConsumer";
    private static final String PERSISTENT_SINGLE = PERSISTENT + "PersistentDispatcherSingleActiveConsumer";
    private static final String CURSOR = "org.apache.bookkeeper.mledger.impl.ManagedCursorImpl";
    private static final String REPLAY_SET = PERSISTENT + "MessageRedeliveryController#size";

    /** All hooks. No method has two. */
    static final List<Hook> HOOKS = join(
            consumer(),
            membership(),
            rounds(SHARED, KEY_SHARED, RoundAdvice.Round.class),
            rounds(SHARED + "Classic", KEY_SHARED + "Classic", RoundAdvice.ClassicRound.class),
            List.of(hook(KEY_SHARED + "Classic", "removeConsumersFromRecentJoinedConsumers()", RoundAdvice.PruneRecentlyJoined.class,
                    "recently_joined_pruned")),
            draining(),
            singleActive(),
            cursor(),
            List.of(hook(PERSISTENT + "PersistentTopic", "publishMessage(ByteBuf,PublishContext)", MessageAdvice.Arrive.class, "messages"),
                    hook(PERSISTENT + "PersistentTopic", "addComplete(Position,ByteBuf,Object)", MessageAdvice.Store.class, "messages")));

    private HookTable() {
    }

    private static List<Hook> consumer() {
        String type = SERVICE + "Consumer";
        return List.of(
                new Hook(type, List.of(
                        "sendMessages(List,List,EntryBatchSizes,EntryBatchIndexesAcks,int,long,long,RedeliveryTracker,long)",
                        "sendMessages(List,List,EntryBatchSizes,EntryBatchIndexesAcks,int,long,long,RedeliveryTracker)"),
                        ConsumerAdvice.Send.class, List.of(), List.of("sent", "send_returned")),
                hook(type, "flowPermits(int)", ConsumerAdvice.Flow.class, "flow", "flow_counted"),
                hook(type, "messageAcked(CommandAck)", ConsumerAdvice.Ack.class, "ack"),
                hook(type, "redeliverUnacknowledgedMessages(long)", ConsumerAdvice.RequestAll.class, "redeliver"),
                hook(type, "notifyActiveConsumerChange(Consumer)", ConsumerAdvice.NotifyActive.class, "active_notified"));
    }

    private static List<Hook> membership() {
        List<Hook> selectors = List.of("ConsistentHashing", "HashRangeAutoSplit", "HashRangeExclusive").stream()
                .map(name -> SERVICE + name + "StickyKeyConsumerSelector").flatMap(type -> List.of(
                        hook(type, "addConsumer(Consumer)", MembershipAdvice.SelectorAdd.class, "selector_added", "selector_refused"),
                        hook(type, "removeConsumer(Consumer)", MembershipAdvice.SelectorRemove.class, "selector_removed")).stream())
                .toList();
        return join(selectors, List.of(
                new Hook(SINGLE, List.of("internalAddConsumer(Consumer)", "addConsumer(Consumer)"), MembershipAdvice.Add.class,
                        List.of(), List.of("consumer_added")),
                hook(SINGLE, "removeConsumer(Consumer)", MembershipAdvice.Remove.class, "consumer_removing", "consumer_removed"),
                hook(SINGLE, "disconnectAllConsumers(boolean,Optional)", MembershipAdvice.DisconnectAll.class, "all_disconnecting")));
    }

    /** The dispatchers of several consumers: {@code keyShared} extends {@code shared}. */
    private static List<Hook> rounds(String shared, String keyShared, Class<?> keySharedRound) {
        String round = "trySendMessagesToConsumers(ReadType,List)";
        return List.of(
                hook(shared, "addConsumer(Consumer)", MembershipAdvice.Add.class, "consumer_added"),
                hook(shared, "removeConsumer(Consumer)", MembershipAdvice.RemoveShared.class, "consumer_removing", "consumer_removed"),
                hook(shared, "close(boolean,Optional)", MembershipAdvice.DisconnectAll.class, "all_disconnecting"),
                hook(keyShared, "removeConsumer(Consumer)", MembershipAdvice.Remove.class, "consumer_removing", "consumer_removed"),
                hook(shared, "internalConsumerFlow(Consumer,int)", RoundAdvice.Flow.class, "flow_applied"),
                new Hook(shared, List.of("readMoreEntries()"), RoundAdvice.Attempt.class,
                        List.of(keyShared + "#getAvailablePermits"), List.of("read_attempt", "read_attempt_end")),
                hook(keyShared, "getAvailablePermits(Consumer)", RoundAdvice.UsablePermits.class, "usable_seen"),
                hook(shared, "asyncReplayEntries(Set)", RoundAdvice.ReplayRead.class, "replay_read_issued", "replay_already_deleted"),
                hook(shared, "asyncReplayEntriesInOrder(Set)", RoundAdvice.ReplayRead.class, "replay_read_issued", "replay_already_deleted"),
                hook(keyShared, "asyncReplayEntries(Set)", RoundAdvice.ReplayRead.class, "replay_read_issued", "replay_already_deleted"),
                new Hook(shared, List.of("readEntriesComplete(List,Object)"), RoundAdvice.ReadDone.class,
                        List.of(shared + "#getStickyKeyHash"), List.of("read_done")),
                new Hook(shared, List.of(round), RoundAdvice.SharedRound.class, List.of(REPLAY_SET), List.of("round_begin", "round_end")),
                new Hook(keyShared, List.of(round), keySharedRound, List.of(REPLAY_SET), List.of("round_begin", "round_end")),
                hook(shared, "redeliverUnacknowledgedMessages(Consumer,long)", RoundAdvice.RedeliverAll.class, "redeliver"),
                hook(shared, "redeliverUnacknowledgedMessages(Consumer,List)", RoundAdvice.Redeliver.class, "redeliver"));
    }

    private static List<Hook> draining() {
        String tracker = SERVICE + "DrainingHashesTracker";
        String pendingAcks = SERVICE + "PendingAcksMap";
        return List.of(
                hook(tracker, "addEntry(Consumer,int)", DrainingAdvice.Add.class, "draining_add"),
                new Hook(tracker, List.of("reduceRefCount(Consumer,int,boolean)"), DrainingAdvice.Release.class,
                        List.of(tracker + "$DrainingHashEntry#refCount"), List.of("draining_release")),
                hook(tracker, "shouldBlockStickyKeyHash(Consumer,int)", DrainingAdvice.Block.class, "draining_blocked"),
                hook(tracker, "clear()", DrainingAdvice.Clear.class, "draining_clear"),
                hook(pendingAcks, "handleRemovePendingAck(long,long,int)", DrainingAdvice.PendingAckRemoved.class, "pending_ack_removed"),
                hook(pendingAcks, "addPendingAckIfAllowed(long,long,int,int)", DrainingAdvice.PendingAckAdded.class, "pending_ack_refused"));
    }

    private static List<Hook> singleActive() {
        return List.of(
                hook(SINGLE, "pickAndScheduleActiveConsumer()", SingleActiveAdvice.Pick.class, "active_picked"),
                hook(PERSISTENT_SINGLE, "scheduleReadOnActiveConsumer()", SingleActiveAdvice.Handover.class, "handover_scheduled"),
                hook(PERSISTENT_SINGLE, "internalConsumerFlow(Consumer)", SingleActiveAdvice.Flow.class, "flow_applied"),
                hook(PERSISTENT_SINGLE, "readMoreEntries(Consumer)", SingleActiveAdvice.Attempt.class, "read_attempt"),
                new Hook(PERSISTENT_SINGLE, List.of("readEntriesComplete(List,Consumer,long,long)", "internalReadEntriesComplete(List,Object)"),
                        SingleActiveAdvice.ReadDone.class, List.of(), List.of("read_done")),
                hook(PERSISTENT_SINGLE, "dispatchEntriesToConsumer(Consumer,List,EntryBatchSizes,EntryBatchIndexesAcks,SendMessageInfo,long)",
                        SingleActiveAdvice.Round.class, "round_begin"),
                hook(PERSISTENT_SINGLE, "internalRedeliverUnacknowledgedMessages(Consumer,long)", RoundAdvice.RedeliverAll.class, "redeliver"));
    }

    private static List<Hook> cursor() {
        return List.of(
                new Hook(CURSOR, List.of("asyncReadEntriesWithSkipOrWait(int,long,ReadEntriesCallback,Object,Position,Predicate)",
                        "asyncReadEntriesOrWait(int,long,ReadEntriesCallback,Object,Position)"), CursorAdvice.Read.class, List.of(),
                        List.of("read_issued")),
                hook(CURSOR, "cancelPendingReadRequest()", CursorAdvice.CancelRead.class, "read_cancelled"),
                new Hook(CURSOR, List.of("rewind(boolean)", "rewind()"), CursorAdvice.Rewind.class, List.of(), List.of("rewind")),
                hook(CURSOR, "setAcknowledgedPosition(Position)", CursorAdvice.Acknowledged.class, "mark_delete"),
                hook(CURSOR, "asyncSkipEntries(int,IndividualDeletedEntries,SkipEntriesCallback,Object)", CursorAdvice.Skip.class, "cursor_op"),
                hook(CURSOR, "asyncClearBacklog(ClearBacklogCallback,Object)", CursorAdvice.ClearBacklog.class, "cursor_op"),
                hook(CURSOR, "asyncResetCursor(Position,boolean,ResetCursorCallback)", CursorAdvice.Reset.class, "cursor_op"),
                hook(CURSOR, "asyncMarkDelete(Position,Map,MarkDeleteCallback,Object)", CursorAdvice.MarkDelete.class, "cursor_op"));
    }

    private static Hook hook(String type, String signature, Class<?> advice, String... kinds) {
        return new Hook(type, List.of(signature), advice, List.of(), List.of(kinds));
    }

    @SafeVarargs
    private static List<Hook> join(List<Hook>... parts) {
        return java.util.Arrays.stream(parts).flatMap(List::stream).toList();
    }
}
