package dispatchaudit.soak;

import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import java.util.Map;

/**
 * What the clients of one subscription do, step by step. {@code tests/soak/script.py} makes scripts from seeds.
 *
 * @param name       names the topic
 * @param type       subscription type
 * @param config     settings of the broker for this script, under their broker.conf names
 * @param partitions of the topic; 0 = it is not partitioned
 * @param partition  the one that is used
 * @param batching   messages are published in batches
 * @param batchMessages most messages of a batch; 0 = 5
 * @param mixedKeys  a batch holds messages of several keys, not of one
 * @param quietMs    after each step the driver waits until nothing has happened for so long; 0 = it goes on at once
 */
record Script(String name, String type, Map<String, Object> config, int partitions, int partition, boolean batching,
              @JsonProperty("batch_messages") int batchMessages, @JsonProperty("mixed_keys") boolean mixedKeys,
              @JsonProperty("quiet_ms") int quietMs, List<Step> steps) {

    /**
     * One step. Only the fields of its kind are set; a step about a consumer that is not connected is passed over, so that every
     * part of a script is a script.
     *
     * @param what     kind of step, see {@link Play}
     * @param consumer name of the consumer
     * @param count    number of messages, entries or milliseconds
     * @param keys     of the messages to publish, null in it = none
     * @param random   seed of a choice in this step; 0 = the first ones
     * @param queue    receiver queue size, 1 or more
     * @param ranges   hash ranges of a sticky consumer; null = AUTO_SPLIT
     * @param delayMs  messages are delivered so much later
     * @param readCompacted the consumer reads the compacted topic
     */
    record Step(String what, String consumer, int count, List<String> keys, long random, int queue, int priority,
                int[][] ranges, @JsonProperty("out_of_order") boolean outOfOrder, @JsonProperty("delay_ms") long delayMs,
                @JsonProperty("read_compacted") boolean readCompacted) {
    }
}
