package dispatchaudit.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

/** The document shows the table of hooks. */
class HookTableTest {
    private static final Path DOCUMENT = Path.of("../../docs/soak.md");

    /** A row for each class and method, with the kinds of lines. */
    private static String table() {
        Map<String, TreeSet<String>> rows = new LinkedHashMap<>();
        for (Hook hook : HookTable.HOOKS) {
            String methods = hook.signatures().stream().map(signature -> signature.substring(0, signature.indexOf('(')))
                    .distinct().map(name -> "`" + name + "`").collect(java.util.stream.Collectors.joining(" or "));
            rows.computeIfAbsent("`" + hook.simpleType() + "` | " + methods, row -> new TreeSet<>()).addAll(hook.kinds());
        }
        StringBuilder text = new StringBuilder("| class | method | lines |\n| --- | --- | --- |\n");
        rows.forEach((row, kinds) -> text.append("| ").append(row).append(" | ")
                .append(String.join(", ", kinds.stream().map(kind -> "`" + kind + "`").toList())).append(" |\n"));
        return text.toString();
    }

    @Test
    void theDocumentShowsTheTable() throws IOException {
        String text = Files.readString(DOCUMENT);
        String begin = "<!-- generated: hooks -->\n";
        int from = text.indexOf(begin) + begin.length();
        assertEquals(table(), text.substring(from, text.indexOf("<!-- end -->", from)));
    }
}
